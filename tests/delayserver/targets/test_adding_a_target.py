"""A kind of target that the server does not know is one file and one line in the registry."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from delayserver import embedded
from delayserver.client.values.messages import SendResult
from delayserver.config.checking import find_problems
from delayserver.config.listing import effective_settings
from delayserver.config.reloading import changes
from delayserver.config.toml_file import ConfigError, load_settings
from delayserver.protocol.errors import NotRouted
from delayserver.protocol.outcomes import Outcome
from delayserver.targets.registry import KINDS
from tests.delayserver.targets.lines_target import LINES


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, LINES.scheme, LINES)


def config(tmp_path: Path, *nodes: str) -> str:
    path = tmp_path / "server.toml"
    path.write_text(
        f'[[groups]]\nname = "default"\n[[groups]]\nname = "files"\nnodes = [{", ".join(nodes)}]\n'
        '[[routes]]\npattern = "to.file*"\ngroups = ["files"]\n[[routes]]\npattern = "*"\ngroups = ["default"]\n'
    )
    return str(path)


def lines_node(file: Path, options: str = '{ end = "\\n" }') -> str:
    return f'{{ address = "lines://{file}", options = {options} }}'


def test_messages_arrive_at_a_target_that_only_the_registry_knows(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    with embedded.open(str(tmp_path / "data"), config=config(tmp_path, lines_node(file))) as server:
        sent = [server.send("to.file", f"line {number}", delay_ms=10 * number) for number in range(10)]
        broken = server.send("to.file", "two\nlines", delay_ms=0)
        consumed = server.send("elsewhere", "for a consumer", delay_ms=0)
        (message,) = server.pull("elsewhere", "g", wait_s=60)
        assert message.message_id == consumed.message_id
        until(lambda: {outcome(server, one) for one in sent} == {Outcome.DELIVERED})
        until(lambda: outcome(server, broken) == Outcome.DEAD_LETTERED)
        assert sorted(file.read_text().splitlines()) == sorted(f"line {number}" for number in range(10))
        with pytest.raises(NotRouted, match="consumers cannot pull"):
            server.route(subject="to.file")
        with pytest.raises(NotRouted, match="consumers cannot pull"):
            server.publish("to.file", b"now")
        (node,) = server.status()["groups"]["files"]["nodes"]
        assert (node["address"], node["state"]) == (f"lines://{file}", "up")


def outcome(server: embedded.Embedded, sent: SendResult) -> Outcome:
    return server.lookup(sent.receipt).outcome


def until(holds: Callable[[], bool]) -> None:
    """A minute is for a busy machine: it takes milliseconds."""
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


WRONG = {
    "unknown scheme": ('"line:///tmp/x"', "groups.nodes.address: 'line:///tmp/x' has an unknown scheme"),
    "no address of the kind": ('"lines://x"', "groups.nodes.address: 'lines://x' is no address: write lines:///PATH"),
    "missing option": ('"lines:///x"', "groups.nodes.options.end is missing"),
    "unknown option": (lines_node(Path("/x"), "{ ends = ';' }"), "did you mean 'groups.nodes.options.end'?"),
    "wrong type": (lines_node(Path("/x"), "{ end = 7 }"), "groups.nodes.options.end: expected a text"),
    "out of bounds": (
        lines_node(Path("/x"), "{ end = ';', line_bytes_max = 0 }"),
        "groups.nodes.options.line_bytes_max: expected bytes",
    ),
    "refused by the kind": (
        lines_node(Path("/x"), "{ end = 'ab' }"),
        "groups.nodes.options: end: expected one character",
    ),
    "options of another kind": (
        '{ address = "h:1", options = { end = ";" } }',
        "unknown key 'groups.nodes.options.end'",
    ),
    "nodes that cannot replace each other": (
        f'{lines_node(Path("/x"))}, "embedded"',
        "lines:///x and embedded of 'files' cannot replace each other, because only one of them is `consumable`",
    ),
}


@pytest.mark.parametrize(("nodes", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_node_is_refused_by_its_full_name(tmp_path: Path, nodes: str, expected: str) -> None:
    path = config(tmp_path, nodes)
    with pytest.raises(ConfigError) as raised:
        load_settings(path)
    assert expected in str(raised.value)
    (problem,) = find_problems(path, ())
    assert expected in problem.text


def test_options_are_shown_and_stay_while_a_server_runs(tmp_path: Path) -> None:
    path = config(tmp_path, lines_node(Path("/x"), '{ end = ";", line_bytes_max = "1KiB" }'))
    before = load_settings(path)
    groups = next(setting.value for setting in effective_settings(path, {}) if setting.key == "groups")
    node = {"address": "lines:///x", "weight": 1, "options": {"end": ";", "line_bytes_max": 1024}}
    assert groups[1]["nodes"] == [node]
    assert groups[0]["nodes"] == [{"address": "embedded", "weight": 1}]
    after = load_settings(config(tmp_path, lines_node(Path("/x"), '{ end = "," }')))
    with pytest.raises(ConfigError, match=r"groups\.nodes\.options of lines:///x: cannot change while the server runs"):
        changes(before, after)


def test_a_scheme_is_no_other_node_than_the_address_without_it(tmp_path: Path) -> None:
    settings = load_settings(config(tmp_path, '"tcp://127.0.0.1:9"'))
    assert settings.groups[1].nodes[0].address == "127.0.0.1:9"
