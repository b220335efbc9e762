"""The distribution beside PyPA's `wheel`: built, installed, uninstalled, in fresh environments with nothing faked."""

from __future__ import annotations

import base64
import email
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PACKAGES = ("delayserver", "store", "wheel", "ops")
NAMESPACES = ("store", "wheel", "ops")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
# Most modules of what is installed are never imported, and the others are compiled then.
ENVIRONMENT |= {"PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


# What `python -m build` does, which makes a second environment for the wheel.
BUILD = """
import shutil, sys
from pathlib import Path
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv

root, out = sys.argv[1:]
with DefaultIsolatedEnv() as environment:
    environment.install(ProjectBuilder.from_isolated_env(environment, root).build_system_requires)
    made = []
    for kind in ("sdist", "wheel"):
        builder = ProjectBuilder.from_isolated_env(environment, root)
        if needed := builder.get_requires_for_build(kind):
            environment.install(needed)
        made.append(builder.build(kind, out))
        if kind == "sdist":
            shutil.unpack_archive(made[0], out)
            root = str(Path(out, Path(made[0]).name.removesuffix(".tar.gz")))
print(*made, sep="\\n")
"""


@dataclass(frozen=True, slots=True)
class Built:
    sdist: Path
    wheel: Path


class Environment:
    """A fresh virtual environment, worked on from a directory that is no checkout. The pip of this interpreter works on it:
    one of its own takes longer to install than all else."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, symlinks=True, with_pip=False)
        self.directory = directory
        self.python = directory / "bin" / "python"

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run([str(self.python), *arguments], cwd=self.directory, check=check)

    def pip(self, *arguments: str) -> None:
        run([sys.executable, "-m", "pip", "--python", str(self.python), *arguments], cwd=self.directory)

    def files(self, name: str) -> list[tuple[Path, str]]:
        """Installed files of a distribution with their recorded SHA-256 (empty where none is recorded)."""
        code = (
            "import importlib.metadata as m, sys\n"
            "for f in m.distribution(sys.argv[1]).files: print(f.locate(), f.hash.value if f.hash else '', sep='\\t')"
        )
        lines = self.run("-c", code, name).stdout.splitlines()
        return [(Path(path), digest) for path, _, digest in (line.partition("\t") for line in lines)]


def run(command: Sequence[str], *, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def digest_of(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def changed_files(files: list[tuple[Path, str]]) -> list[Path]:
    """Files that are missing, or not as they were recorded."""
    return [path for path, digest in files if not path.exists() or (digest and digest_of(path) != digest)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel built from it. One environment has what pyproject.toml asks for, and builds both."""
    out = tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-c", BUILD, str(ROOT), str(out)], cwd=out)
    sdist, wheel = done.stdout.splitlines()[-2:]
    return Built(Path(sdist), Path(wheel))


@pytest.fixture(scope="module")
def side_by_side(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with PyPA's wheel, then ours beside it."""
    environment = Environment(tmp_path_factory.mktemp("beside") / "venv")
    environment.pip("install", "--quiet", "wheel")
    environment.pip("install", "--quiet", str(built.wheel))
    return environment


def test_the_wheel_holds_the_four_packages_and_nothing_else(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} <= set(PACKAGES)
    assert {"delayserver", "store", "wheel"} <= tops
    expected = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert expected <= set(names)
    # And every file beside the code: data, the console, what an operator deploys, the runbook.
    tracked = run(["git", "ls-files", "--", *PACKAGES], cwd=ROOT, check=False).stdout.splitlines()
    expected |= {name for name in tracked if not name.startswith("ops/clients/") and (ROOT / name).is_file()}
    assert expected - set(names) == set()
    for needed in ("delayserver/py.typed", "delayserver/protocol/vectors.json", "delayserver/web/console/index.html"):
        assert needed in names
    assert {"ops/RUNBOOK.md", "ops/deploy/systemd/delayserver.service", "ops/deploy/container/compose.yaml"} <= set(
        names
    )
    assert not [name for name in names if name.endswith((".pyc", ".so"))]
    # Clients in other languages are for a checkout, or for the sdist.
    assert not [name for name in names if name.startswith("ops/clients/")]


def test_the_wheel_has_the_documents_of_operators_beside_the_packages(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    data = f"{next(name for name in names if '.dist-info/' in name).partition('.dist-info/')[0]}.data/data/share"
    of_the_wire = [f"docs/reference/protocol-{name}.md" for name in ("operators", "shards", "changes", "examples")]
    of_the_root = ("delayserver.sample.toml", "CHANGELOG.md", "PROTOCOL.md", "HTTP.md", "VERSIONING.md", "RUNBOOK.md")
    for name in (*of_the_root, *of_the_wire, "docs/reference/filters.md"):
        assert f"{data}/doc/delayserver/{name}" in names
    for name in ("systemd/delayserver.service", "container/Containerfile", "kubernetes/statefulset.yaml"):
        assert f"{data}/delayserver/deploy/{name}" in names


def test_the_metadata_says_for_whom_it_is(built: Built) -> None:
    archive = zipfile.ZipFile(built.wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == ("delayserver", project["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert {"audit", "bench", "fuzz", "docs", "test", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    assert set(metadata.get_all("Classifier", [])) == set(project["classifiers"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    # A runner such as uvx or pipx starts the script that bears the name of the distribution.
    (points,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "[console_scripts]\ndelayserver = delayserver.cli:main\n" in points


def test_the_shared_names_are_namespaces_in_the_wheel(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert not [name for name in names if name in {f"{package}/__init__.py" for package in NAMESPACES}]


def test_the_sdist_can_be_built_and_tested(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "delayserver.sample.toml", ".ci/run"}
    assert needed <= names
    assert {"store/disk/filesystem.py", "wheel/hashed_wheel.py", "tests/test_tidy.py"} <= names
    assert {"HTTP.md", "PROTOCOL.md", "VERSIONING.md", "docs/index.md", "mkdocs.yml"} <= names
    assert {
        "ops/clients/go/LICENSE",
        "ops/clients/go/go.mod",
        "ops/clients/go/go.sum",
        "ops/clients/go/client.go",
    } <= names


def test_no_file_of_ours_has_the_name_of_one_of_theirs(built: Built, side_by_side: Environment) -> None:
    theirs = {path.name for path, _ in side_by_side.files("wheel") if path.parent.name == "wheel"}
    ours = {Path(name).name for name in zipfile.ZipFile(built.wheel).namelist() if name.startswith("wheel/")}
    assert "wheelfile.py" in theirs
    assert not ours & theirs


def test_both_packages_named_wheel_work_side_by_side(side_by_side: Environment) -> None:
    side_by_side.run(
        "-c", "import wheel.hashed_wheel, store.disk.filesystem, delayserver.client; import wheel.wheelfile"
    )
    assert side_by_side.run("-m", "wheel", "version").stdout.startswith("wheel ")
    assert "schedule" in side_by_side.run("-m", "delayserver", "--help").stdout


def test_an_installed_wheel_writes_the_dashboard(side_by_side: Environment) -> None:
    made = json.loads(side_by_side.run("-m", "ops.deploy.dashboard").stdout)
    assert {"Overview", "Lateness", "Disk"} <= {panel["title"] for panel in made["panels"] if panel["type"] == "row"}
    assert "schedule" in run([str(side_by_side.python.parent / "delayserver"), "--help"], cwd=ROOT.parent).stdout
    assert changed_files(side_by_side.files("wheel")) == []
    assert changed_files(side_by_side.files("delayserver")) == []


def test_the_installed_program_serves_and_its_gateway_too(side_by_side: Environment, tmp_path: Path) -> None:
    program = str(side_by_side.python.parent / "delayserver")
    assert run([program, "--version"], cwd=tmp_path).stdout.startswith("delayserver, version ")
    command = [program, "serve", "--memory", "--port", "0", "--set", "http.port=0", "--json"]
    server = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    out = server.stdout
    assert out is not None
    try:
        ready = json.loads(out.readline())
        address = f"{ready['host']}:{ready['port']}"
        run([program, "send", "orders", "installed", "--delay", "10ms", "--server", address], cwd=tmp_path)
        pull = ["-m", "delayserver", "pull", "orders", "--group", "g", "--wait", "30s", "--ack", "--json"]
        row = json.loads(side_by_side.run(*pull, "--server", address).stdout)
        assert (row["subject"], row["body"]) == ("orders", "installed")
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
        out.close()


def test_the_installed_gateway_answers_and_has_the_console(side_by_side: Environment, tmp_path: Path) -> None:
    http_port = free_port()
    program = str(side_by_side.python.parent / "delayserver")
    command = [program, "serve", "--memory", "--port", "0", "--http-port", str(http_port), "--json"]
    server = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    out = server.stdout
    assert out is not None
    try:
        assert json.loads(out.readline())["ready"]
        for path, words in (("/healthz", ""), ("/", "<html")):
            assert words in answered(f"http://127.0.0.1:{http_port}{path}")
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
        out.close()


def answered(url: str) -> str:
    """The answer of a gateway that may still be starting."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                text: str = response.read().decode()
                return text
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError) or not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.2)
    raise AssertionError(f"{url} was not answered within a minute")


def test_installing_theirs_again_leaves_ours_whole(side_by_side: Environment) -> None:
    side_by_side.pip("install", "--quiet", "--force-reinstall", "wheel")
    assert changed_files(side_by_side.files("delayserver")) == []
    side_by_side.run("-c", "import wheel.hashed_wheel")


def test_installed_metadata_is_that_of_the_project(side_by_side: Environment) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] in side_by_side.run("-m", "delayserver", "--version").stdout


@pytest.mark.spark
def test_the_installed_report_reads_a_data_directory(built: Built, tmp_path: Path) -> None:
    # Only our distribution is installed; the extra's libraries are those of the interpreter that runs this.
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--quiet", "--no-deps", str(built.wheel))
    libraries = environment.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    # A .pth file of a folder that another one names is not read, so each folder is named.
    folders = [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    Path(libraries, "libraries.pth").write_text("".join([f"{folder}\n" for folder in folders]))
    code = (
        "import sys; from ops.audit.bench_data import write_directory as write; import store.disk.filesystem as s\n"
        "print(write(s.RealFileSystem(), sys.argv[1], 1000, bodies=False).messages, write.__code__.co_filename)"
    )
    written, _, file = environment.run("-c", code, str(tmp_path / "data")).stdout.strip().partition(" ")
    assert written == "1000" and file.startswith(libraries)
    program = str(environment.python.parent / "delayserver")
    done = run([program, "report", "latency", str(tmp_path / "data"), "--json", "--master", "local[1]"], cwd=tmp_path)
    figures = json.loads(done.stdout)
    assert sum(figures["outcomes"].values()) == 1000
    assert figures["count"] == figures["outcomes"]["delivered"] > 900


def test_uninstalling_ours_leaves_theirs_whole_and_an_editable_install_is_guarded(side_by_side: Environment) -> None:
    side_by_side.pip("uninstall", "--quiet", "--yes", "delayserver")
    assert changed_files(side_by_side.files("wheel")) == []
    side_by_side.run("-m", "wheel", "version")
    assert side_by_side.run("-c", "import wheel.hashed_wheel", check=False).returncode == 1

    # Editable: now their wheel/__init__.py wins the name, and the program says so instead of a traceback.
    side_by_side.pip("install", "--quiet", "--no-deps", "--editable", str(ROOT))
    refused = side_by_side.run("-m", "delayserver", "--help", check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "another package 'wheel'" in refused.stderr
    assert "pip uninstall wheel`" in refused.stderr

    # The remedy that it names works.
    side_by_side.pip("uninstall", "--quiet", "--yes", "wheel")
    assert "schedule" in side_by_side.run("-m", "delayserver", "--help").stdout
    side_by_side.run("-c", "import wheel.hashed_wheel")
