"""A member is gone where nothing listens. One that refuses the caller lives."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from delayserver.backup.coverage import Coverage
from delayserver.cli.cluster.forget import forget
from delayserver.cli.cluster.move import move
from delayserver.cli.cluster.status import _covered, _Found, status
from delayserver.cli.cluster.switch import switch
from delayserver.config.settings import Settings
from delayserver.config.toml_file import ConfigError
from delayserver.members.member_map import FORMAT, Announced, Founded, Healed, MemberMap
from delayserver.protocol.errors import RequestTimedOut, Unauthenticated
from delayserver.runtime.shared_log import LogDescription
from delayserver.server.process import require_authentication
from tests.delayserver.cli.cluster.members_there import at, standing

MEMBERS = {name: Announced(name, 0, f"{name}:1", "", "1.2.3", "1") for name in "ab"}
REFUSES = Unauthenticated("this server wants a token")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemberMap:
    """The map of a cluster of two members."""
    found = MemberMap(
        founded=Founded(FORMAT, "4d", ("05",)), members={**MEMBERS}, numbers={"a": 1, "b": 2}, shards=["05"]
    )

    def on_kafka(_path: str | None, work: Any) -> MemberMap:
        if work.__name__ == "write":
            found.members.pop("b", None)
        return found

    monkeypatch.setattr("delayserver.cli.kafka.on_kafka.on_kafka", on_kafka)
    return found


def run(command: click.Command, *arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(command, ["--cluster", "file", *arguments], env=variables)


@pytest.mark.parametrize("answer", [REFUSES, RequestTimedOut("no reply within 3 s")])
def test_a_member_that_refuses_the_token_is_not_forgotten(
    kafka: MemberMap, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    at(monkeypatch, {"b:1": answer})
    done = run(forget, "--member", "b")
    assert done.exit_code == 1 and "b may live: something listens at b:1" in done.output
    assert "b" in kafka.members


def test_a_member_where_nothing_listens_is_forgotten(kafka: MemberMap, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {})
    assert run(forget, "--member", "b").exit_code == 0
    assert "b" not in kafka.members


def test_a_primary_that_refuses_the_token_is_not_moved(kafka: MemberMap, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {"a:1": standing("a"), "b:1": REFUSES})
    done = run(move, "--from", "b", "--to", "a")
    assert done.exit_code == 1 and "b may live" in done.output
    assert "b" in kafka.members


def test_the_status_calls_a_member_down_only_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {"b:1": REFUSES})
    done = CliRunner().invoke(status, ["--server", "a:1,b:1", "--json"])
    assert [json.loads(line)["role"] for line in done.output.splitlines()] == ["down", "unknown"]


def test_the_variable_for_clients_takes_not_the_place_of_the_map(
    kafka: MemberMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = at(monkeypatch, {"a:1": standing("a", role="primary"), "b:1": standing("b")})
    done = run(switch, "--to", "a", DELAYSERVER_SERVER="other:1")
    assert (done.exit_code, asked) == (0, ["a:1", "b:1"])
    asked.clear()
    run(switch, "--to", "a", "--server", "b:1")
    assert asked == ["b:1"]
    asked.clear()
    CliRunner().invoke(switch, ["--to", "a"], env={"DELAYSERVER_SERVER": "a:1"})
    assert asked == ["a:1"]


def test_backups_from_before_the_log_was_healed_do_not_count(
    kafka: MemberMap, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    epochs: list[int] = []

    def find_coverage(*arguments: Any) -> Coverage:
        epochs.append(arguments[5] if len(arguments) > 5 else -1)
        raise click.ClickException("enough")

    monkeypatch.setattr("delayserver.backup.coverage.find_coverage", find_coverage)
    kafka.healed[0] = Healed(0, 50, 3, 7, 4)
    log = LogDescription(3, 2, 1 << 25, 0, 100, 3)
    with pytest.raises(click.ClickException, match="enough"):
        _covered(str(tmp_path), _Found(0, kafka, [log], log), [])
    assert epochs == [4]


def test_a_new_member_without_tokens_is_told_to_get_them_by_the_log() -> None:
    settings = Settings()
    with pytest.raises(ConfigError) as raised:
        require_authentication("listen.host", "10.0.0.1", settings, member=True, guarded=False)
    assert "token create --cluster FILE" in str(raised.value) and "--data-dir" not in str(raised.value)
    with pytest.raises(ConfigError, match="--data-dir"):
        require_authentication("listen.host", "10.0.0.1", settings, member=False, guarded=False)
    require_authentication("listen.host", "10.0.0.1", settings, member=True, guarded=True)


def test_a_switch_says_who_does_not_answer_and_why(kafka: MemberMap, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {"a:1": standing("a", role="primary"), "b:1": REFUSES})
    done = run(switch, "--to", "b")
    assert "no member b of shard 0 answers; those that do: a; b does not: unauthenticated" in done.output
    assert "the cluster has no shard 1" in run(switch, "--shard", "1", "--to", "b").output


def test_a_switch_finds_the_primary_that_a_standby_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--server` need not name all members."""
    asked = at(monkeypatch, {"b:1": replace(standing("b"), primary="a:1"), "a:1": standing("a", role="primary")})
    done = CliRunner().invoke(switch, ["--to", "b", "--server", "b:1"])
    assert done.output == "b leads shard 0 since epoch 4; it was a.\n"
    assert asked[:2] == ["b:1", "a:1"]


def test_a_move_from_nobody_is_no_advice_to_start_it(kafka: MemberMap) -> None:
    assert "no member z: delayserver cluster status" in run(move, "--from", "z", "--to", "b").output
    assert "no member z: start it first" in run(move, "--from", "a", "--to", "z").output
