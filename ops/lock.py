"""Pins all that an installation needs, with hashes: ``python -m ops.lock`` (the extra `lock`; it asks the package index).

The files in `ops/deploy/lock` hold for every platform and every Python that the project supports. A pin stays until it no
longer fits `pyproject.toml`; ``--upgrade`` takes the newest versions.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "ops" / "deploy" / "lock"
EXTRAS: Final = ("backup", "kafka", "otel")
"""Extras of a server in service. The others are for a checkout."""


def project() -> dict[str, Any]:
    """The content of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def wanted() -> dict[str, list[str]]:
    """The requirements of each lock file, by file name: of the server, of it with each extra, and of the build."""
    about = project()
    core, extras = about["project"]["dependencies"], about["project"]["optional-dependencies"]
    return {
        "server.txt": core,
        **{f"server[{extra}].txt": core + extras[extra] for extra in EXTRAS},
        "build.txt": about["build-system"]["requires"],
    }


def compile_lock(name: str, requirements: list[str], python: str, options: list[str]) -> None:
    """Writes one lock file. Raises CalledProcessError."""
    command = ["uv", "pip", "compile", "-", "--universal", "--generate-hashes", "--python-version", python, "--quiet"]
    command += ["--custom-compile-command", "python -m ops.lock", "--output-file", str(FOLDER / name), *options]
    subprocess.run(command, input="\n".join(requirements).encode(), stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Writes all lock files."""
    python = project()["project"]["requires-python"].removeprefix(">=")
    for name, requirements in wanted().items():
        compile_lock(name, requirements, python, sys.argv[1:])


if __name__ == "__main__":
    main()
