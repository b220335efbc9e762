"""``python -m ops.bench.slow_disk serve …``: the server, on a disk that takes READ_S for each read of the broker's store."""

from __future__ import annotations

import argparse
import time
from typing import Final

from delayserver.config.toml_file import load_settings, parse_assignment
from delayserver.server.process import run_server
from store.disk.filesystem import RealFile, RealFileSystem

READ_S: Final = 0.1


class SlowFile(RealFile):
    """A file that is read slowly."""

    __slots__ = ()

    def pread(self, offset: int, length: int) -> bytes:
        time.sleep(READ_S)
        return super().pread(offset, length)


class SlowFileSystem(RealFileSystem):
    """The disk of the system, with slow reads of the broker's store."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        kind = SlowFile if "/broker/store/" in path else RealFile
        return self._open(kind, path, create=create, write=write)


def main() -> int:
    """Serve until SIGTERM. One line says that it is ready."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    named = dict(parse_assignment(text) for text in given.set)
    settings = load_settings(
        None, {**named, "storage.data_dir": given.data_dir, "listen.port": given.port, "http.port": given.http_port}
    )
    return run_server(settings, ready=lambda _host, _port: print("ready", flush=True), fs=SlowFileSystem())


if __name__ == "__main__":
    raise SystemExit(main())
