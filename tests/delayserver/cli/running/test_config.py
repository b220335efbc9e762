"""`delayserver config check` and `config show`: what they print is true, and can be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from delayserver.cli import cli
from delayserver.config.settings import Settings
from delayserver.config.toml_file import load_settings

SAMPLE = Path(__file__).parents[4] / "delayserver.sample.toml"
SECRET = "not for your eyes: 0123456789"


def exit_code(*arguments: str) -> tuple[Any, Any]:
    done = CliRunner().invoke(cli, ["config", *arguments])
    return done.exit_code, done


def test_a_good_configuration_ends_with_0() -> None:
    code, done = exit_code("check", "--config", str(SAMPLE), "--set", "storage.durability=os")
    assert (code, done.stdout) == (0, f"{SAMPLE}: no problems\n")


def test_problems_are_lines_on_stderr_and_the_exit_code_is_1(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[listen]\nport = 'x'\nhots = 'y'\n")
    code, done = exit_code("check", "--config", str(path))
    assert (code, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"{path}:2: listen.port: expected")
    assert second.startswith(f"{path}:3: unknown key 'listen.hots', did you mean 'listen.hosts'?")


def test_check_reports_problems_as_json(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[listen]\nport = 'x'\n")
    code, done = exit_code("check", "--config", str(path), "--json")
    report = json.loads(done.stdout)
    assert (code, report["ok"]) == (1, False)
    assert [(problem["place"], problem["line"]) for problem in report["problems"]] == [(str(path), 2)]
    code, done = exit_code("check", "--json")
    assert (code, json.loads(done.stdout)) == (0, {"ok": True, "problems": []})


def test_check_reads_the_certificates(tmp_path: Path) -> None:
    path, certificate = tmp_path / "server.toml", tmp_path / "cert.pem"
    path.write_text(f"[tls]\ncertificate = '{certificate}'\nkey = '{certificate}'\n")
    code, done = exit_code("check", str(path))
    assert (code, done.stderr) == (
        1,
        f"{path}:2: tls.certificate and tls.key: {certificate}: No such file or directory\n",
    )
    certificate.write_text("no certificate")
    code, done = exit_code("check", str(path))
    assert code == 1 and f"{path}:2: tls.certificate and tls.key: {certificate} and {certificate}: " in done.stderr


FILE = """
shutdown_timeout_ms = "1500ms"
[listen]
port = 7
server_networks = ["10.0.0.0/8", "::1/128"]
[storage]
data_dir = "a \\"quoted\\" \\\\ folder \\u007f ä"
window_ms = "30s"
retention_ms = 90000
[transactions]
policy = "commit"
[[groups]]
name = "east"
nodes = ["10.0.0.11:20811", { address = "10.0.0.12:20811", weight = 2 }]
[[groups]]
name = "here"
[[routes]]
pattern = "orders*"
groups = ["east", "here"]
"""


@pytest.mark.parametrize("changed", [[], ["--changed"]])
def test_the_output_of_show_is_a_file_with_the_same_settings(tmp_path: Path, changed: list[str]) -> None:
    path = tmp_path / "server.toml"
    path.write_text(FILE)
    code, done = exit_code("show", "--config", str(path), "--set", "wheel.slots=64", *changed)
    assert code == 0
    shown = tmp_path / "shown.toml"
    shown.write_text(done.stdout)
    assert load_settings(str(shown)) == load_settings(str(path), {"wheel.slots": 64})
    assert ("durability" in done.stdout) == (not changed)
    assert f"port = 7  # file, {path}:4\n" in done.stdout
    assert "slots = 64  # --set\n" in done.stdout


def test_show_without_a_file_prints_the_defaults(tmp_path: Path) -> None:
    shown = tmp_path / "shown.toml"
    shown.write_text(exit_code("show")[1].stdout)
    assert load_settings(str(shown)) == Settings()
    assert exit_code("show", "--changed")[1].stdout == ""


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f'[listen]\nserver_secret = "{SECRET}"\n')
    for how in ([], ["--json"], ["--changed"]):
        done = exit_code("show", "--config", str(path), *how)[1]
        assert SECRET not in done.output
        assert "server_secret" in done.output
    (row,) = [json.loads(line) for line in done_lines("show", "--config", str(path), "--changed", "--json")]
    assert row == {"key": "listen.server_secret", "secret": True, "source": "file", "line": 2}


def done_lines(*arguments: str) -> list[str]:
    lines: list[str] = exit_code(*arguments)[1].stdout.splitlines()
    return lines


def test_show_as_json_has_value_default_and_source(tmp_path: Path) -> None:
    rows = {row["key"]: row for row in map(json.loads, done_lines("show", "--set", "listen.port=9", "--json"))}
    assert rows["listen.port"] == {"key": "listen.port", "value": 9, "default": 20801, "source": "--set"}
    assert rows["storage.window_ms"]["value"] == 60_000
    assert rows["routes"]["value"] == [{"pattern": "*", "groups": ["default"]}]


def test_show_refuses_settings_that_a_server_refuses(delayserver: Any, tmp_path: Path) -> None:
    done = delayserver("config", "show", "--set", "listen.prot=1")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'listen.port'?" in done.err


def test_check_takes_the_file_as_its_argument(tmp_path: Path) -> None:
    code, done = exit_code("check", str(SAMPLE))
    assert (code, done.stdout) == (0, f"{SAMPLE}: no problems\n")
    path = tmp_path / "server.toml"
    path.write_text("[listen]\nhots = 'y'\n")
    code, done = exit_code("check", str(path))
    assert code == 1 and str(path) in done.stderr
    assert exit_code("check", str(path), "--config", str(SAMPLE))[0] == 2
