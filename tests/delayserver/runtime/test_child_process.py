"""Child processes run modules of this package, whatever lies in the working directory."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import delayserver
from delayserver import __version__
from delayserver.runtime.child_process import child_command


def test_a_module_in_the_working_directory_does_not_run(tmp_path: Path) -> None:
    planted = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
    for name in ("delayserver", "trio", "json", "runpy", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(planted)
    done = subprocess.run(
        child_command("delayserver", "--version"), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert __version__ in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".ran"] == []


def test_no_part_starts_a_module_by_its_name_alone() -> None:
    root = Path(delayserver.__file__).parent
    for path in root.rglob("*.py"):
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert "-m" not in constants, f"{path} starts a module, and not by `child_command`"
