"""A PostgreSQL cluster of its own for tests: in a temporary directory, on a free port, of a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port

# Not that of the tests, which may lie in a folder that only root can enter.
TEMPORARY = "/tmp"
# Users that may own the cluster where the tests are root's, in order.
USERS = ("postgres", "nobody")
DEBIAN = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; None if PostgreSQL is not installed."""
    found = sorted(DEBIAN.glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("pg_ctl")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


def why_not() -> str:
    """Why no cluster can be started here; "" if one can."""
    if programs() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.getuid() == 0 and not _user():
        return "the tests are root's, and there is no other user for PostgreSQL"
    return ""


def _user() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in USERS if name in known), "")


def _run(program: str, *arguments: str) -> None:
    folder = programs()
    assert folder is not None
    as_user: dict[str, Any] = {"user": _user(), "group": pwd.getpwnam(_user()).pw_gid} if os.getuid() == 0 else {}
    done = subprocess.run(
        [str(folder / program), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=TEMPORARY,
        env={"PATH": os.defpath, "LC_ALL": "C"},
        timeout=180,
        **as_user,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def cluster() -> Iterator[str]:
    """A running cluster: how to connect to it. It is stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="delayserver-postgres-", dir=TEMPORARY))
    if os.getuid() == 0:
        shutil.chown(folder, _user())
    data = str(folder / "data")
    try:
        _run("initdb", "-D", data, "-U", "tester", "--auth=trust", "--no-sync", "--encoding=UTF8")
        port = free_port()
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _run("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"host=127.0.0.1 port={port} user=tester dbname=postgres"
        finally:
            _run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
