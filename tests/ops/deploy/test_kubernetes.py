"""The manifests for Kubernetes: valid by its schemas, and fitting together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from delayserver.cli import cli
from delayserver.config.checking import find_problems
from delayserver.config.toml_file import SERVER_SECRET_LENGTH_MIN, load_settings

FOLDER = Path(__file__).parents[3] / "ops" / "deploy" / "kubernetes"
# The oldest version that its makers still mend, and the newest that the checker knows.
VERSIONS = ("1.32", kubernetes_validate.latest_version())
KINDS = {
    "ConfigMap", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "ServiceAccount",
    "ServiceMonitor", "StatefulSet",
}  # fmt: skip
Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """All that the kustomization names, with its namespace; the same as `kubectl kustomize` makes of them."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [each for name in kustomization["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())]


ALL = manifests()
# The other one is no part of Kubernetes. Its fields are tested below.
CORE = [each for each in ALL if each["kind"] != "ServiceMonitor"]


def one(kind: str, name: str = "delayserver") -> Manifest:
    (found,) = [each for each in ALL if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod() -> Manifest:
    spec: Manifest = one("StatefulSet")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", CORE, ids=[f"{each['kind']}-{each['metadata']['name']}" for each in CORE])
def test_a_manifest_is_valid_by_the_schema_of_kubernetes(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_checker_finds_a_mistake() -> None:
    wrong = one("StatefulSet") | {"spec": one("StatefulSet")["spec"] | {"replcas": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replcas"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_every_file_is_named_and_every_kind_is_there() -> None:
    named = set(yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"])
    assert named == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert {each["kind"] for each in ALL} == KINDS


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_takes_the_folder() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True)
    made = list(yaml.safe_load_all(done.stdout))
    assert {each["kind"] for each in made} == KINDS
    assert {each["metadata"].get("namespace", "delayserver") for each in made} == {"delayserver"}


def test_the_pod_is_restricted() -> None:
    # The rules of the Pod Security Standard "restricted", which the namespace enforces.
    assert one("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    context = pod()["securityContext"]
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert context["runAsUser"] == context["fsGroup"] == 10001
    for container in [*pod()["initContainers"], *pod()["containers"]]:
        locked = container["securityContext"]
        assert locked["allowPrivilegeEscalation"] is False
        assert locked["readOnlyRootFilesystem"] is True
        assert locked["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    assert set().union(*[set(volume) for volume in pod()["volumes"]]) <= {"name", "configMap", "secret", "emptyDir"}
    assert not pod()["automountServiceAccountToken"]


def test_the_probes_ask_the_gateway() -> None:
    (server,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"rpc": 20801, "http": 20880}
    # The first two end a container. A start that waits for room on the disk would begin anew, and go on by itself.
    paths = {name: server[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {
        "startupProbe": {"path": "/healthz", "port": "http"},
        "livenessProbe": {"path": "/healthz", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
    }


def test_the_command_and_the_configuration_are_valid(tmp_path: Path) -> None:
    (server,) = pod()["containers"]
    name, *arguments = server["args"]
    command = cli.get_command(cli.make_context("delayserver", ["--help"], resilient_parsing=True), name)
    assert command is not None
    command.make_context(name, list(arguments))
    path = tmp_path / "delayserver.toml"
    path.write_text(one("ConfigMap")["data"]["delayserver.toml"])
    assert find_problems(str(path), []) == []
    settings = load_settings(str(path))
    assert settings.shutdown_timeout_ms < pod()["terminationGracePeriodSeconds"] * 1000
    assert not settings.listen.insecure, "the first token is made before the start"
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert settings.storage.data_dir.startswith(mounts["data"] + "/")
    assert mounts["config"] == "/etc/delayserver"


def test_the_secret_of_the_example_is_refused_until_it_is_replaced(tmp_path: Path) -> None:
    (server,) = pod()["containers"]
    volume = next(volume for volume in pod()["volumes"] if volume["name"] == "secret")
    (mounted,) = (mount["mountPath"] for mount in server["volumeMounts"] if mount["name"] == "secret")
    ((key, secret),) = one("Secret", volume["secret"]["secretName"])["stringData"].items()
    assert len(secret) < SERVER_SECRET_LENGTH_MIN
    assert f"listen.server_secret_file={mounted}/{key}" in server["args"]
    file = tmp_path / key
    file.write_text(secret)
    assert find_problems(None, [f"listen.server_secret_file={file}"])
    file.write_text(secret * 2)
    assert not find_problems(None, [f"listen.server_secret_file={file}"])


def test_the_first_token_is_made_once_and_lets_an_administrator_in(tmp_path: Path) -> None:
    (container,) = pod()["initContainers"]
    shell, flags, script = container["command"]
    assert (shell, flags) == ("sh", "-ec")
    folder = tmp_path / "bin"
    folder.mkdir()

    program = folder / "delayserver"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m delayserver "$@"\n')
    program.chmod(0o755)
    token_file = tmp_path / "first-token.json"
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHONPATH": str(FOLDER.parents[2]),
        "DATA_DIR": str(tmp_path / "data"),
        "TOKEN_FILE": str(token_file),
    }
    assert {variable["name"] for variable in container["env"]} == {"DATA_DIR", "TOKEN_FILE"}
    for _ in range(2):
        subprocess.run([shell, flags, script], env=environment, check=True)
    token = yaml.safe_load(token_file.read_text())
    assert (token["roles"], token["token"][:4]) == (["admin"], "dst_")
    assert token_file.stat().st_mode & 0o077 == 0
    listed = subprocess.run(
        [str(program), "token", "list", "--data-dir", str(tmp_path / "data"), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.count('"name":"first"') == 1


def test_selectors_choose_the_pods_and_services() -> None:
    labels = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one("StatefulSet")["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *[one("Service", name)["spec"]["selector"] for name in ("delayserver", "delayserver-servers")],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    headless = one("Service", one("StatefulSet")["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    (claim,) = one("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"


def test_the_service_monitor_scrapes_each_server_once() -> None:
    monitor = one("ServiceMonitor")
    # The fields of monitoring.coreos.com/v1 that it uses, so that a misspelt one is found.
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) == {"selector", "namespaceSelector", "endpoints"}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert set(endpoint) == {"port", "path", "interval", "scrapeTimeout", "authorization"}
    assert set(endpoint["authorization"]) == {"type", "credentials"}
    assert set(endpoint["authorization"]["credentials"]) == {"name", "key"}
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = [each for each in ALL if each["kind"] == "Service"]
    chosen = [each for each in services if wanted.items() <= each["metadata"].get("labels", {}).items()]
    assert [each["metadata"]["name"] for each in chosen] == ["delayserver-servers"]
    assert endpoint["port"] in [port["name"] for port in chosen[0]["spec"]["ports"]]


def test_the_network_policy_names_the_ports_that_are_open() -> None:
    spec = one("NetworkPolicy")["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == {"rpc", "http"}
