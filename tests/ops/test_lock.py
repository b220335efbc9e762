"""The lock files pin, by hashes, exactly what `pyproject.toml` asks for. No test asks the package index."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ops.lock import EXTRAS, FOLDER, ROOT, project, wanted

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
ADVICE = "run: python -m ops.lock"


def pins(name: str) -> dict[str, list[tuple[Requirement, int]]]:
    """What a lock file pins, each with the number of its hashes. A package may have a pin for each of several Pythons."""
    text = "".join([line for line in (FOLDER / name).read_text().splitlines(True) if not line.lstrip().startswith("#")])
    found: dict[str, list[tuple[Requirement, int]]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        requirement = Requirement(entry.partition("--hash")[0])
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(HASH.findall(entry))))
    return found


def test_there_is_a_lock_file_for_each_set_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(wanted())


@pytest.mark.parametrize("name", list(wanted()))
def test_every_line_is_one_version_with_hashes(name: str) -> None:
    for found in pins(name).values():
        for requirement, hashes in found:
            (specifier,) = requirement.specifier
            assert specifier.operator == "==" and "*" not in specifier.version, requirement
            assert hashes, requirement


@pytest.mark.parametrize("name", list(wanted()))
def test_a_lock_file_fits_the_requirements_of_the_project(name: str) -> None:
    locked = pins(name)
    for asked in map(Requirement, wanted()[name]):
        found = locked.get(canonicalize_name(asked.name))
        assert found, f"{asked}: {ADVICE}"
        for requirement, _ in found:
            (specifier,) = requirement.specifier
            assert asked.specifier.contains(Version(specifier.version), prereleases=True), f"{asked}: {ADVICE}"


@pytest.mark.parametrize("name", list(wanted()))
def test_a_lock_file_has_all_that_its_packages_need_and_nothing_else(name: str) -> None:
    """As far as the packages are installed here, in the versions of this environment."""
    locked, left = pins(name), [canonicalize_name(Requirement(text).name) for text in wanted()[name]]
    needed: set[str] = set()
    while left:
        package = left.pop()
        if package in needed:
            continue
        needed.add(package)
        try:
            asked = [Requirement(text) for text in requires(package) or ()]
        except PackageNotFoundError:
            continue
        left += [
            canonicalize_name(each.name) for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    assert needed <= locked.keys(), ADVICE
    if name != "build.txt":  # its packages are not installed here
        assert all(each.marker is not None for other in locked.keys() - needed for each, _ in locked[other]), ADVICE


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "ops" / "deploy" / "container" / "Containerfile").read_text()
    steps = re.findall(r"bin/pip (?:install|wheel) ([^\n\\]*)", text)
    assert len(steps) == 4
    assert all("--require-hashes -r " in step or "--no-index --no-deps" in step for step in steps)
    named = {found for step in steps for found in re.findall(r"ops/deploy/lock/([^\s\"]+)", step)}
    assert {
        each.replace("${EXTRAS}", extra) for each in named for extra in ("", *[f"[{extra}]" for extra in EXTRAS])
    } == set(wanted())


def test_the_extras_of_lock_files_are_those_of_the_project() -> None:
    assert set(EXTRAS) <= project()["project"]["optional-dependencies"].keys()
