"""Runs `delayserver` commands in processes that are forked instead of started anew.

Such a process differs from `python -m delayserver` in one thing: it need not import numpy, trio and our own modules again,
which costs most of a second of a processor. So hundreds of tests can run the program as a user does. A launcher, which has
imported everything and done nothing else, forks one child for each command. The child takes the given descriptors, working
directory and environment, and runs the module `delayserver` as `__main__` up to the end of the interpreter.

At that end an interpreter takes all objects apart. In a forked process this copies the memory of the launcher, which costs
four times what a short command does. So a command that has ended as it should leaves this out.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
REQUEST_BYTES_MAX = 1 << 20
STATUS = struct.Struct("<i")
PID = struct.Struct("<i")
# The gateway's libraries take as long again, and only the gateway needs them.
NOT_IMPORTED = ("delayserver.kafka", "delayserver.web", "delayserver.__main__")


# The second one comes as well where a process is stopped for 100 ms between its looks at two clocks.
STALLS = ("event_loop_stalled", "clock_stepped")


def without_stalls(log: str) -> str:
    """The lines of a server's log, but for stalls of its event loop: on a busy machine these are no fault of it."""
    return "".join([line for line in log.splitlines(keepends=True) if not any(event in line for event in STALLS)])


class Program(subprocess.Popen[bytes]):
    """A `Popen` of `delayserver` with these arguments, in a forked process. Takes the options of `Popen` that `can_fork`
    allows."""

    def __init__(self, arguments: list[str], **options: Any) -> None:
        self._status = -1
        super().__init__(arguments, **options)

    @staticmethod
    def can_fork(options: dict[str, Any]) -> bool:
        """Whether a program with these options may be forked: the interpreter reads none of them at its start."""
        return set(options) <= {"stdin", "stdout", "stderr", "cwd"} and options.get("cwd", ROOT) == ROOT

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        # (executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell), then the pipes
        _, _, _, _, _, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = rest
        given = [p2cread, c2pwrite, errwrite]
        files = [number if file == -1 else file for number, file in enumerate(given)]
        environment = dict(os.environ if env is None else env)
        self.pid, self._status = Launcher.of_this_process().launch(args, environment, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        data = os.read(self._status, STATUS.size)
        os.close(self._status)
        self._status = -1
        return self.pid, STATUS.unpack(data)[0] if data else signal.SIGKILL

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and self._status != -1:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """`Popen`, but `python -m delayserver` is forked."""
    if command[:3] == [sys.executable, "-m", "delayserver"]:
        return Program(command[3:], **options)
    return subprocess.Popen(command, **options)


def forking(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Have a module that starts servers by `subprocess.Popen` fork them."""
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))


class Launcher:
    """The process that forks, from the side of the tests."""

    _mine: Launcher | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
        command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    @classmethod
    def of_this_process(cls) -> Launcher:
        """The only one, made when it is needed first."""
        with cls._making:
            if cls._mine is None:
                cls._mine = cls()
            return cls._mine

    def launch(self, arguments: list[str], environment: dict[str, str], files: list[int]) -> tuple[int, int]:
        """Forks a program. `files` are its standard descriptors. Returns its process id, and a descriptor that has its wait
        status when it has ended."""
        reader, writer = os.pipe()
        request = json.dumps({"arguments": arguments, "environment": environment}).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [request], [*files, writer])
                answer = self._socket.recv(PID.size)
        finally:
            os.close(writer)
        if not answer:
            raise RuntimeError("the launcher of forked programs has ended")
        return PID.unpack(answer)[0], reader


class Children:
    """The side of the launcher: it forks, and says how its children ended."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._statuses: dict[int, int] = {}

    def run(self) -> dict[str, Any] | None:
        """Fork until the tests have ended. Returns twice: in a child with what it shall run, and None at the end."""
        awake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(awake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            sources: list[Any] = [self._asked, awake]
            readable = select.select(sources, [], [])[0]
            if awake in readable:
                os.read(awake, 4096)
                self._reap()
            if self._asked in readable:
                message, files, _, _ = socket.recv_fds(self._asked, REQUEST_BYTES_MAX, 4)
                if not message:
                    return None
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for number, file in enumerate(files[:3]):
                        os.dup2(file, number)
                    os.closerange(3, 4096)
                    self._asked.detach()
                    given: dict[str, Any] = json.loads(message)
                    return given
                self._statuses[pid] = files[3]
                for file in files[:3]:
                    os.close(file)
                self._asked.send(PID.pack(pid))

    def _reap(self) -> None:
        while self._statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            file = self._statuses.pop(pid)
            with suppress(OSError):
                os.write(file, STATUS.pack(status))
            os.close(file)


def import_all() -> None:
    """Import what a command may need."""
    package = importlib.import_module("delayserver")
    for module in pkgutil.walk_packages(package.__path__, "delayserver.", onerror=lambda _name: None):
        if not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)


def main() -> None:
    """Fork children; in each, run `delayserver` to the end of the interpreter."""
    import_all()
    gc.collect()
    gc.freeze()
    given = Children(socket.socket(fileno=int(sys.argv[1]))).run()
    if given is None:
        return
    os.environ.clear()
    os.environ.update(given["environment"])
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["delayserver", *given["arguments"]]
    try:
        runpy.run_module("delayserver", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        end(ended.code)
        raise


def end(status: int) -> None:
    """End this process as the interpreter does, but take nothing apart. Returns if an output does not take the last words:
    the interpreter has more to say about this."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
