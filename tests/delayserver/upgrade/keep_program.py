"""Keeps the program of some commit, so that a test can run its server on a directory that today's server wrote.

    git worktree add /tmp/past eaafbfa
    python tests/delayserver/upgrade/keep_program.py eaafbfa /tmp/past tests/delayserver/upgrade

`<commit>-program.tar.xz` holds the server's sources as they are in the commit. A test has no history: CI copies the files
of a commit alone.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

# A server needs neither its clients nor the tools beside it.
LEFT_OUT = ("cli/demo", "cli/recover", "client", "embedded", "recover/checking", "recover/mending", "recover/telling")


def main() -> None:
    """Write the archive of a commit."""
    commit, tree, folder = sys.argv[1:]
    root = Path(tree).resolve()
    left_out = [root / "delayserver" / name for name in LEFT_OUT]
    files = [path for package in ("delayserver", "store", "wheel") for path in sorted((root / package).rglob("*.py"))]
    kept = [path for path in files if not any(path.is_relative_to(name) for name in left_out)]
    archive = Path(folder, f"{commit}-program.tar.xz")
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for file in kept:
            content = file.read_bytes()
            entry = tarfile.TarInfo(str(file.relative_to(root)))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    print(f"{archive}: {len(kept)} files, {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
