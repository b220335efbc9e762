"""The guard for the names that other distributions use too; the real thing with PyPA's wheel is in tests/packaging."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from delayserver.runtime.names_guard import find_taken_names

ROOT = Path(__file__).parents[3]
ASK = "from delayserver.runtime.names_guard import find_taken_names\nfor taken in find_taken_names(): print(taken.explain())"


def ask(cwd: Path, *first_on_path: Path) -> str:
    """What the guard says in a fresh interpreter whose path starts with the given folders."""
    paths = [str(path) for path in (*first_on_path, ROOT)]
    code = f"import sys; sys.path[:0] = {paths!r}\n{ASK}"
    run = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    return run.stdout


def test_the_guard_is_silent_where_no_name_is_taken(tmp_path: Path) -> None:
    assert find_taken_names() == []
    assert ask(tmp_path) == ""


@pytest.mark.parametrize("name", ["wheel", "store", "ops"])
def test_a_foreign_package_is_named_with_its_place_and_is_not_run(tmp_path: Path, name: str) -> None:
    foreign = tmp_path / "foreign" / name
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("raise SystemExit('the guard ran foreign code')")
    said = ask(tmp_path, foreign.parent)
    assert said.count("\n") == 1
    assert str(foreign / "__init__.py") in said
    assert f"another package {name!r}" in said
    assert "remove or rename" in said


def test_a_foreign_module_of_the_same_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text("")
    assert f"another package 'store' ({tmp_path / 'store.py'})" in ask(tmp_path, tmp_path)


def test_a_foreign_namespace_beside_ours_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / "other.py").write_text("")
    assert ask(tmp_path, tmp_path) == ""


def test_a_missing_package_of_ours_is_called_an_incomplete_installation() -> None:
    code = "import sys; sys.modules.pop('wheel', None); sys.meta_path.insert(0, Nothing())\n" + ASK
    finder = "class Nothing:\n    def find_spec(self, name, path=None, target=None):\n"
    finder += "        if name.partition('.')[0] == 'wheel': raise ModuleNotFoundError(name)\n"
    run = subprocess.run([sys.executable, "-c", finder + code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "package 'wheel' of delayserver is missing" in run.stdout
    assert "the installation is incomplete" in run.stdout
