"""The command line of a Python process that runs a module of this package, such as the HTTP gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# As `python -m` does, but with the directory of this package behind all others, and without the working directory.
_RUN: Final = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module, whatever the working directory is.

    `-P` keeps Python from looking for modules in the working directory. Another user who may write there could otherwise
    run code as the user of the server."""
    return [sys.executable, "-P", "-c", _RUN, str(Path(__file__).resolve().parents[2]), module, *arguments]
