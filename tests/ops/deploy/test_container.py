"""The image and the compose file. No engine runs here, so the facts that matter are read from the files."""

from __future__ import annotations

import fnmatch
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from dockerfile_parse import DockerfileParser

from delayserver.cli import cli
from delayserver.config.checking import find_problems
from delayserver.config.settings import Settings
from delayserver.config.toml_file import load_settings
from ops.deploy import dashboard

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "ops" / "deploy" / "container"
PORTS = (20801, 20880)


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=io.BytesIO((FOLDER / "Containerfile").read_bytes()))
    return [(row["instruction"], row["value"]) for row in parser.structure if row["instruction"] != "COMMENT"]


@pytest.fixture(scope="module")
def last_stage(instructions: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The values of each instruction of the stage that becomes the image."""
    begin = max(number for number, (name, _) in enumerate(instructions) if name == "FROM")
    found: dict[str, list[str]] = {}
    for name, value in instructions[begin:]:
        found.setdefault(name, []).append(value)
    return found


def accepted(command: list[str]) -> None:
    """Raises if the command line does not take these arguments."""
    name, *arguments = command
    found = cli.get_command(cli.make_context("delayserver", ["--help"], resilient_parsing=True), name)
    assert found is not None
    found.make_context(name, arguments)


def test_the_image_is_built_in_two_stages_and_the_second_has_no_compiler_and_no_checkout(
    instructions: list[tuple[str, str]], last_stage: dict[str, list[str]]
) -> None:
    bases = [value for name, value in instructions if name == "FROM"]
    assert len(bases) == 2 and bases[0].endswith(" AS build")
    assert all("-slim" in base for base in bases)
    assert [value.split()[0] for value in last_stage["COPY"]] == ["--from=build"]
    assert not any("pip install" in value or "apt" in value for value in last_stage["RUN"])


def test_the_image_does_not_run_as_root_and_owns_its_volume(last_stage: dict[str, list[str]]) -> None:
    user = last_stage["USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, so that Kubernetes knows that it is not root"
    (made,) = last_stage["RUN"]
    uid, gid = user.split(":")
    assert f"--uid {uid}" in made and f"--gid {gid}" in made
    assert "install -d -o delayserver -g delayserver -m 0700 /var/lib/delayserver" in made
    assert last_stage["VOLUME"] == ['["/var/lib/delayserver"]']


def test_the_image_has_ports_a_signal_and_a_health_check(last_stage: dict[str, list[str]]) -> None:
    assert {int(port) for value in last_stage["EXPOSE"] for port in value.split()} == set(PORTS)
    assert last_stage["STOPSIGNAL"] == ["SIGTERM"]
    (check,) = last_stage["HEALTHCHECK"]
    assert ":20880/readyz" in check and "--start-period=" in check


def test_the_command_of_the_image_is_accepted_and_keeps_its_data_in_the_volume(
    last_stage: dict[str, list[str]],
) -> None:
    assert last_stage["ENTRYPOINT"] == ['["delayserver"]']
    command: list[str] = yaml.safe_load(last_stage["CMD"][0])
    accepted(command)
    assert command[-1].startswith("/var/lib/delayserver/")
    assert "--insecure" not in command


def test_all_that_the_image_is_built_from_is_there_and_sent(instructions: list[tuple[str, str]]) -> None:
    ignored = [line for line in (FOLDER / "Containerfile.dockerignore").read_text().splitlines() if line[:1] != "#"]
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for name, value in instructions
        if name == "COPY" and "--from" not in value
        for source in value.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / source).exists() for source in sent)
    # What the build of the wheel reads is sent too.
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, wheel = hatch["project"], hatch["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {project["readme"], *project["license-files"], *wheel["only-include"], *wheel.get("shared-data", {})}
    assert {name for name in needed if not any(fnmatch.fnmatch(name, f"{each}*") for each in sent)} == set()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return loaded


OURS = ("server", "node1", "node2")


def test_the_compose_file_has_a_server_two_nodes_and_an_optional_monitoring(compose: dict[str, Any]) -> None:
    optional = {name for name, service in compose["services"].items() if "profiles" in service}
    assert (set(compose["services"]) - optional, optional) == (
        set(OURS),
        {"prometheus", "dashboard", "grafana"},
    )
    build = compose["services"]["server"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def test_the_commands_and_configurations_of_the_compose_file_are_valid(compose: dict[str, Any], tmp_path: Path) -> None:
    for name in OURS:
        service = compose["services"][name]
        accepted(service["command"])
        (config,) = service["configs"]
        assert config["target"] == service["command"][service["command"].index("--config") + 1]
        path = tmp_path / "config.toml"
        path.write_text(compose["configs"][config["source"]]["content"])
        assert find_problems(str(path), []) == []
        settings = load_settings(str(path))
        if name == "server":
            nodes = [node.address for group in settings.groups for node in group.nodes]
            assert nodes == ["node1:20801", "node2:20801"]
            secret = settings.listen.server_secret
        assert settings.listen.server_secret == secret
        (volume,) = service["volumes"]
        source, _, target = volume.partition(":")
        assert source in compose["volumes"] and service["command"][-1].startswith(target)


def test_each_server_of_the_compose_file_answers_its_health_check_and_prometheus(
    compose: dict[str, Any], last_stage: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process is really run with: a broker takes no port of HTTP from its file."""
    run: list[Settings] = []

    def runs(settings: Settings, **_: object) -> int:
        run.append(settings)
        return 0

    for name in ("run_server", "run_broker"):
        monkeypatch.setattr(f"delayserver.server.process.{name}", runs)
    monkeypatch.setattr("delayserver.cli.running.starting.begin_logs", lambda _: None)
    for name in OURS:
        service = compose["services"][name]
        path = tmp_path / f"{name}.toml"
        path.write_text(compose["configs"][service["configs"][0]["source"]]["content"])
        target = service["configs"][0]["target"]
        command = [str(path) if argument == target else argument for argument in service["command"]]
        assert CliRunner().invoke(cli, command).exit_code == 0, name
    (check,) = last_stage["HEALTHCHECK"]
    assert f":{PORTS[1]}/readyz" in check
    assert [(each.listen.port, each.http.port) for each in run] == [PORTS] * 3
    assert {host for each in run for host in (each.listen.host, each.http.host)} == {"*"}


def test_the_compose_file_opens_ports_on_loopback_alone_and_takes_privileges(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    for name in (*OURS, "dashboard"):
        service = compose["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert "no-new-privileges:true" in service["security_opt"]
        assert "mem_limit" in service


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where the service has what it mounts."""
    return {volume.split(":")[0]: volume.split(":")[1] for volume in service["volumes"]}


def test_the_compose_file_mounts_the_rules(compose: dict[str, Any]) -> None:
    mounted = set()
    for source, target in mounts(compose["services"]["prometheus"]).items():
        if source.startswith("."):
            assert (FOLDER / source).is_file(), source
            mounted.add(target)
    rules = yaml.safe_load(compose["configs"]["prometheus"]["content"])["rule_files"]
    assert {f"/etc/prometheus/{rule}" for rule in rules} == mounted


def test_the_compose_file_writes_the_dashboard_where_grafana_finds_it_at_its_start(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    writer, grafana = compose["services"]["dashboard"], compose["services"]["grafana"]
    (python, *arguments), (path,) = writer["entrypoint"], writer["command"]
    assert python == "python" and writer["image"] == compose["services"]["server"]["image"]
    written = tmp_path / "delayserver.json"
    subprocess.run([sys.executable, *arguments, str(written)], cwd=ROOT, check=True)
    assert json.loads(written.read_text()) == dashboard.dashboard()
    ((volume, folder),) = mounts(writer).items()
    assert path == f"{folder}/delayserver.json"
    (provider,) = yaml.safe_load(compose["configs"]["dashboards"]["content"])["providers"]
    assert mounts(grafana)[volume] == provider["options"]["path"]
    assert grafana["depends_on"] == {"dashboard": {"condition": "service_completed_successfully"}}


def test_prometheus_of_the_compose_file_reads_every_server(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:20880" for name in OURS]}]
