"""The manifests of a cluster for Kubernetes: valid by its schemas, and what they run is what the command line takes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from delayserver.cli import cli
from delayserver.config.checking import find_problems
from delayserver.config.cluster_file import load_cluster
from delayserver.config.toml_file import load_settings
from tests.ops.deploy.test_kubernetes import VERSIONS

FOLDER = Path(__file__).parents[3] / "ops" / "deploy" / "kubernetes-cluster"
NAMED = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
ALL = [each for name in NAMED["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())]


def one(kind: str, name: str = "delayserver") -> dict[str, Any]:
    (found,) = [each for each in ALL if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return dict(found)


def pods() -> list[dict[str, Any]]:
    """Those of the members, and that of the job."""
    return [one("StatefulSet")["spec"]["template"]["spec"], one("Job", "delayserver-init")["spec"]["template"]["spec"]]


def accept(arguments: list[str]) -> None:
    """The command line takes these arguments."""
    group: Any = cli
    context = group.make_context("delayserver", ["--help"], resilient_parsing=True)
    while hasattr(group, "commands"):
        name, *arguments = arguments
        found = group.get_command(context, name)
        assert found is not None, name
        group = found
    group.make_context(name, arguments)


def member_files(tmp_path: Path) -> Path:
    """What the first container of member delayserver-1 makes of the files."""
    (container,) = pods()[0]["initContainers"]
    shell, flags, script = container["command"]
    assert (shell, flags) == ("sh", "-ec")
    assert {variable["name"] for variable in container["env"]} == {"MEMBER", "FROM", "TO"}
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    target.mkdir()
    for name, text in one("ConfigMap")["data"].items():
        (source / name).write_text(text)
    values = {"MEMBER": "delayserver-1", "FROM": str(source), "TO": str(target), "PATH": os.environ["PATH"]}
    subprocess.run([shell, flags, script], env=values, check=True)
    return target


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", ALL, ids=[f"{each['kind']}-{each['metadata']['name']}" for each in ALL])
def test_a_manifest_of_a_cluster_is_valid_by_the_schema_of_kubernetes(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_every_manifest_of_a_cluster_is_named() -> None:
    assert set(NAMED["resources"]) == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}


def test_the_commands_of_members_and_of_the_job_are_accepted() -> None:
    for pod in pods():
        (container,) = pod["containers"]
        accept(container["args"])


def test_each_member_has_its_own_name_and_address(tmp_path: Path) -> None:
    made = member_files(tmp_path)
    path = made / "delayserver.toml"
    assert find_problems(str(path), []) == []
    settings, cluster = load_settings(str(path)), load_cluster(str(made / "cluster.toml"))
    assert (cluster.member, cluster.shard, cluster.copies) == ("delayserver-1", 0, 3)
    service, namespace = one("StatefulSet")["spec"]["serviceName"], NAMED["namespace"]
    assert settings.listen.announced == (f"delayserver-1.{service}.{namespace}:20801",)
    assert settings.shutdown_timeout_ms < pods()[0]["terminationGracePeriodSeconds"] * 1000
    (server,) = pods()[0]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert settings.storage.data_dir.startswith(mounts["data"] + "/")
    assert {argument for argument in server["args"] if argument.startswith("/")} == {
        f"{mounts['config']}/{name}" for name in one("ConfigMap")["data"]
    }


def test_a_standby_is_ready_so_that_an_update_goes_on() -> None:
    (server,) = pods()[0]["containers"]
    paths = {name: server[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_members_stand_on_machines_of_their_own_and_leave_one_at_a_time() -> None:
    labels = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    (term,) = pods()[0]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    selectors = [
        term["labelSelector"]["matchLabels"],
        one("StatefulSet")["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *[one("Service", name)["spec"]["selector"] for name in ("delayserver", "delayserver-members")],
    ]
    assert all(selector == labels for selector in selectors)
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    # The job is no member: nobody counts on it, and no client reaches it.
    assert one("Job", "delayserver-init")["spec"]["template"]["metadata"]["labels"] != labels
    (claim,) = one("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == one("StorageClass", "delayserver-local")["metadata"]["name"]


def test_the_pods_of_a_cluster_are_restricted() -> None:
    assert (
        one("Namespace", NAMED["namespace"])["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    )
    for pod in pods():
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert not pod["automountServiceAccountToken"]
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            locked = container["securityContext"]
            assert (locked["allowPrivilegeEscalation"], locked["readOnlyRootFilesystem"]) == (False, True)
            assert locked["capabilities"] == {"drop": ["ALL"]} and "memory" in container["resources"]["limits"]
