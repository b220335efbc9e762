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
    """Those of the members, that of the job, those of the gateway, and that of the backups."""
    owners = [one("StatefulSet"), one("Job", "delayserver-init"), one("Deployment", "delayserver-gateway")]
    backups = one("CronJob", "delayserver-backup")["spec"]["jobTemplate"]
    return [owner["spec"]["template"]["spec"] for owner in [*owners, backups]]


def accept(arguments: list[str], mounts: dict[str, Path] | None = None) -> None:
    """The command line takes these arguments. Paths below `mounts` are those here."""
    for place, here in (mounts or {}).items():
        arguments = [each.replace(place, str(here), 1) if each.startswith(place) else each for each in arguments]
    group: Any = cli
    context = group.make_context("delayserver", ["--help"], resilient_parsing=True)
    while hasattr(group, "commands") and not arguments[0].startswith("-"):
        name, *arguments = arguments
        found = group.get_command(context, name)
        assert found is not None, name
        group = found
    with group.make_context(name, arguments):
        pass


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
    for pod in pods()[:3]:
        (container,) = pod["containers"]
        accept(container["args"])


def test_the_gateway_knows_all_members() -> None:
    (container,) = pods()[2]["containers"]
    given = container["args"][container["args"].index("--server") + 1]
    service, namespace = one("StatefulSet")["spec"]["serviceName"], NAMED["namespace"]
    members = [f"delayserver-{number}" for number in range(one("StatefulSet")["spec"]["replicas"])]
    assert given.split(",") == [f"{name}.{service}.{namespace}:20801" for name in members]
    labels = one("Deployment", "delayserver-gateway")["spec"]["template"]["metadata"]["labels"]
    for kind, name in (("Service", "delayserver-gateway"), ("PodDisruptionBudget", "delayserver-gateway")):
        selector = one(kind, name)["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    assert labels != one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    # A cluster that is away restarts no gateway.
    assert "httpGet" not in container["livenessProbe"]


def test_a_backup_reads_the_disk_of_its_member_and_is_checked_before_the_log_is_trimmed(
    tmp_path: Path,
) -> None:
    pod = pods()[3]
    steps = [*pod["initContainers"], *pod["containers"]]
    (tmp_path / "shard-0").mkdir()
    (tmp_path / "token").touch()
    for step in steps:
        accept(step["args"], {"/backups": tmp_path, "/etc/delayserver-operator": tmp_path})
    assert [step["name"] for step in steps] == ["backup", "check", "prune", "trim"]
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    member = term["labelSelector"]["matchLabels"]["statefulset.kubernetes.io/pod-name"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (claim,) = one("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == f"{claim['metadata']['name']}-{member}"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "the pod of the backup mounts it too"
    backup, *others = steps
    assert any(argument.startswith(f"{member}.") for argument in backup["args"])
    # The path of a snapshot is that of the member.
    (server,) = pods()[0]["containers"]
    paths = [{mount["name"]: mount["mountPath"] for mount in step["volumeMounts"]} for step in (server, *steps)]
    assert paths[0]["data"] == paths[1]["data"] and not any("data" in each for each in paths[2:])
    assert (
        volumes["backups"]["persistentVolumeClaim"]["claimName"]
        == one("PersistentVolumeClaim", "delayserver-backups")["metadata"]["name"]
    )
    folder = backup["args"][backup["args"].index("--to") + 1]
    assert all(folder in step["args"] and folder.startswith(paths[1]["backups"] + "/") for step in others)
    assert one("CronJob", "delayserver-backup")["spec"]["concurrencyPolicy"] == "Forbid"


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
