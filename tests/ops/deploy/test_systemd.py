"""The systemd units: systemd finds nothing wrong in them, and they leave the service little that it does not need."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from delayserver.cli import cli
from tests.delayserver.cli.conftest import run

UNITS = Path(__file__).parents[3] / "ops" / "deploy" / "systemd"
SERVER, BROKER = "delayserver.service", "delayserver-broker@.service"
MEMBER = "delayserver-member@.service"
ALL = [SERVER, BROKER, MEMBER]
# systemd's word for an exposure of at most 2.0 of 10 is OK. A web server without hardening has 9.6.
EXPOSURE_MAX = 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def lines_of(unit: str) -> list[tuple[str, str]]:
    text = (UNITS / unit).read_text()
    return [(name, value) for name, _, value in (line.partition("=") for line in text.splitlines()) if value or _]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units with a program that is there; `verify` looks for it."""
    program = tmp_path / "delayserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in ALL:
        text = (UNITS / unit).read_text().replace("/opt/delayserver/bin/delayserver", str(program))
        (tmp_path / unit.replace("@", "@east1")).write_text(text)
    return tmp_path


@needs_systemd
@pytest.mark.parametrize("unit", ALL)
def test_systemd_finds_nothing_wrong(installed: Path, unit: str) -> None:
    done = analyze("verify", "--man=no", str(installed / unit.replace("@", "@east1")))
    # It also reads what the unit depends on, and reports units of the machine.
    found = [line for line in done.stderr.splitlines() if "delayserver" in line]
    assert (done.returncode, found) == (0, [])


@needs_systemd
def test_systemd_would_find_a_mistake(installed: Path) -> None:
    unit = installed / SERVER
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=strickt\nProtectHoem=yes"))
    done = analyze("verify", "--man=no", str(unit))
    assert "ProtectHoem" in done.stderr and "strickt" in done.stderr


@needs_systemd
@pytest.mark.parametrize("unit", ALL)
def test_systemd_calls_the_exposure_ok(installed: Path, unit: str) -> None:
    path = installed / unit.replace("@", "@east1")
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", "--no-pager", str(path))
    overall = re.search(r"Overall exposure level for \S+: ([\d.]+) (\w+)", done.stdout)
    assert overall is not None, done.stdout + done.stderr
    assert (done.returncode, float(overall[1]) <= EXPOSURE_MAX) == (0, True), done.stdout


@pytest.mark.parametrize("unit", [BROKER, MEMBER])
def test_a_node_and_a_member_are_as_locked_in_as_the_server(unit: str) -> None:
    apart = {"Description", "ExecStartPre", "ExecStart", "StateDirectory", "RestartPreventExitStatus"}
    server, other = ([line for line in lines_of(each) if line[0] not in apart] for each in (SERVER, unit))
    assert [line for line in server if not line[0].startswith("#")] == [
        line for line in other if not line[0].startswith("#")
    ]


def test_a_member_that_cannot_use_its_log_is_not_tried_again() -> None:
    """Members end with this code by name: `test_a_lost_log_ends_all_members_by_name`."""
    assert dict(lines_of(MEMBER))["RestartPreventExitStatus"].split() == ["2", "3"]


@pytest.mark.parametrize("unit", ALL)
def test_the_command_lines_of_the_units_are_accepted(unit: str) -> None:
    values = dict(lines_of(unit))
    for name in ("ExecStartPre", "ExecStart"):
        program, command, *arguments = values[name].removeprefix("-").split()
        assert program == "/opt/delayserver/bin/delayserver"
        found = cli.get_command(cli.make_context("delayserver", ["--help"], resilient_parsing=True), command)
        assert found is not None
        found.make_context(command, arguments, resilient_parsing=False)
    assert f"/var/lib/{values['StateDirectory']}" == values["ExecStart"].split()[-1]


@pytest.mark.parametrize("unit", ALL)
def test_a_unit_has_the_settings_that_the_program_relies_on(unit: str) -> None:
    values = dict(lines_of(unit))
    assert (values["Type"], values["NotifyAccess"]) == ("notify", "main")
    assert values["WatchdogSec"].endswith("s") and int(values["WatchdogSec"][:-1]) >= 30
    assert values["ProtectSystem"] == "strict" and values["NoNewPrivileges"] == "yes"
    assert {"MemoryMax", "LimitNOFILE", "SystemCallFilter", "Restart"} <= set(values)


@pytest.mark.parametrize("unit", ALL)
def test_a_wrong_configuration_ends_the_unit_and_is_not_tried_again(unit: str, tmp_path: Path) -> None:
    """systemd compares `RestartPreventExitStatus` with the exit code of ExecStart alone."""
    values = dict(lines_of(unit))
    (tmp_path / "wrong.toml").write_text("[listen]\nport = 'none'\nhots = 1\n")
    command = values["ExecStart"].split()[1]
    config = ["--config", str(tmp_path / "wrong.toml")]
    started = run(command, *config, "--data-dir", str(tmp_path / "data"))
    assert str(started.code) in values["RestartPreventExitStatus"].split()
    checked = run("config", "check", *config)
    assert checked.code != 0 and {"port", "hots"} <= set(re.findall(r"\w+", checked.err))
    assert values["ExecStartPre"].startswith("-"), "systemd would start the unit again and again"


def test_the_audit_file_that_the_document_names_is_not_in_the_data_and_the_unit_may_write_it(tmp_path: Path) -> None:
    document = (UNITS.parents[2] / "docs" / "how-to" / "secure.md").read_text()
    (path,) = re.findall(r'^audit_file = "(.+)"$', document, re.M)
    for unit in ALL:
        values = dict(lines_of(unit))
        assert Path(path).parent == Path("/var/log") / values.get("LogsDirectory", ""), unit
    # A new data directory with a file in it is refused, and the log is written first.
    (tmp_path / "data").mkdir()
    inside = f"log.audit_file={tmp_path / 'data' / 'audit.log'}"
    refused = run("serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--http-port", "0", "--set", inside)
    assert refused.code == 1 and "not empty" in refused.err
