"""A server under the limits of small machines: it serves, or says by name what is missing, and never ends by itself.

Real processes under real limits. Each case sends messages for two hours of minutes, so that more windows have files than a
process may have descriptors, and messages that are due now.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from delayserver.client import Client, DelayServerError, Message
from tests.ports import free_port

MIB = 1 << 20
WINDOWS = 120
NOW = 20
WITHIN_S = 60
# Sets limits in the new process alone, then becomes the server.
LAUNCH = """
import os, resource, sys
for limit in sys.argv[1].split(","):
    if limit.startswith("cpu="):
        os.sched_setaffinity(0, {int(limit[4:])})
    elif limit.startswith("cgroup="):
        open(limit[7:] + "/cgroup.procs", "w").write(str(os.getpid()))
    elif limit:
        name, _, value = limit.partition("=")
        resource.setrlimit(getattr(resource, name), (int(value), int(value)))
os.execv(sys.executable, [sys.executable, "-m", "delayserver", *sys.argv[2:]])
"""


@dataclass
class Limited:
    """A server that is started under limits."""

    directory: Path
    log: Path
    limits: str = ""
    settings: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> bool:
        """Start, and wait until it is ready or has ended. Returns whether it is ready."""
        options = [option for setting in self.settings for option in ("--set", setting)]
        arguments = ["serve", "--data-dir", str(self.directory), "--port", str(self.port), "--http-port", "0", *options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, self.limits, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        return "ready" in self.process.stdout.readline()

    def said(self) -> str:
        return self.log.read_text()

    def require_alive(self) -> None:
        assert self.process is not None and self.process.poll() is None, self.said()[-3000:]

    def stop(self) -> int:
        """Ask it to stop; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WITHIN_S)
        return self._close()

    def clean_up(self) -> None:
        """End it, if it lives."""
        if self.process is not None:
            self.process.kill()
            self._close()

    def _close(self) -> int:
        process, self.process = self.process, None
        assert process is not None and process.stdout is not None
        process.stdout.close()
        return process.wait(WITHIN_S)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    server = Limited(tmp_path / "data", tmp_path / "log")
    yield server
    server.clean_up()


def use(server: Limited, subjects: Sequence[str] = ("first", "second")) -> None:
    """Send messages for now and for two hours, cancel one, and receive those of now: once in each life of the server."""
    pending = 0
    for subject in subjects:
        assert server.start(), server.said()[-3000:]
        with Client(server.address, timeout_s=WITHIN_S) as client:
            now = time.time_ns() // 1_000_000
            far = [Message(subject="far", body=b"x" * 200, due_ms=now + 60_000 * (5 + n)) for n in range(WINDOWS)]
            near = [Message(subject=subject, body=b"x" * 200, due_ms=now) for _ in range(NOW)]
            sent = client.send_many(far + near)
            refused = [result for result in sent if isinstance(result, DelayServerError)]
            assert not refused, refused[0]
            came, until = 0, time.monotonic() + WITHIN_S
            while came < NOW and time.monotonic() < until:
                came += len(client.pull(subject, "g", max_messages=NOW, wait_s=1.0, ack_timeout_s=3600))
                server.require_alive()
            assert came == NOW
            receipt = sent[0].receipt  # type: ignore[union-attr]
            assert client.cancel(receipt).outcome.name == "CANCELLED"
            assert client.lookup(sent[5].receipt).outcome.name == "PENDING"  # type: ignore[union-attr]
            pending += WINDOWS - 1
            until = time.monotonic() + WITHIN_S
            while client.status()["pending"] != pending and time.monotonic() < until:
                time.sleep(0.05)
            assert client.status()["pending"] == pending
        server.require_alive()
        assert server.stop() == 0, server.said()[-3000:]


@pytest.mark.parametrize("descriptors", [256, 1024])
def test_with_few_descriptors_it_serves(limited: Limited, descriptors: int) -> None:
    limited.limits = f"RLIMIT_NOFILE={descriptors}"
    use(limited)
    assert f"{descriptors} file descriptors leave room for" in limited.said()


def test_with_too_few_descriptors_it_says_how_many_it_needs(limited: Limited) -> None:
    limited.limits = "RLIMIT_NOFILE=64"
    assert not limited.start()
    assert limited.process is not None and limited.process.wait(WITHIN_S) == 2
    assert "64 file descriptors" in limited.said() and "ulimit -n" in limited.said()
    assert "Traceback" not in limited.said()


# The root of the memory controller and the file of its limit: control groups of version 2, and of version 1.
CONTROLLERS = (
    ("/sys/fs/cgroup/cgroup.controllers", "memory.max"),
    ("/sys/fs/cgroup/memory/cgroup.procs", "memory.limit_in_bytes"),
)


@contextlib.contextmanager
def memory_of(bytes_max: int) -> Iterator[str]:
    """The limit for `Limited`: a control group of this machine, or the resource limit where there is none to be had."""
    known, limit = next((found for found in CONTROLLERS if Path(found[0]).exists()), ("", ""))
    group = Path(known).parent / f"delayserver-test-{os.getpid()}"
    try:
        if not known:
            raise FileNotFoundError
        group.mkdir()
        (group / limit).write_text(str(bytes_max))
    except OSError:  # not root, or the controller is not for this machine
        with contextlib.suppress(OSError):
            group.rmdir()
        yield f"RLIMIT_DATA={bytes_max}"
        return
    try:
        yield f"cgroup={group}"
    finally:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def test_with_256_mib_of_memory_it_serves(limited: Limited) -> None:
    with memory_of(256 * MIB) as limit:
        limited.limits = limit
        try:
            use(limited)
        finally:
            limited.clean_up()


def test_on_one_processor_it_serves(limited: Limited) -> None:
    limited.limits = f"cpu={min(os.sched_getaffinity(0))}"
    use(limited, ["alone"])


@contextlib.contextmanager
def small_disk(path: Path, bytes_max: int) -> Iterator[Path]:
    """A file system of its own at a path. Skips the test where the user may not mount one."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={bytes_max}", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"no small disk can be mounted: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def test_on_a_disk_of_64_mib_it_says_what_it_needs_and_serves_with_smaller_segments(
    limited: Limited, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        limited.directory = disk / "data"
        try:
            process = start_waiting(limited)
            until = time.monotonic() + WITHIN_S
            while "needs about" not in limited.said() and time.monotonic() < until:
                assert process.poll() is None, limited.said()
                time.sleep(0.05)
            assert f"needs about {256 * MIB} bytes on a disk with" in limited.said()
            assert "at least 1 bytes" not in limited.said()
            assert limited.stop() == 0, limited.said()
            limited.settings = (
                "storage.message_log_segment_bytes=4MiB",
                "storage.free_bytes_min=4MiB",
                "storage.dispatch_reserve_bytes=1MiB",
                "broker.segment_bytes=4MiB",
            )
            use(limited, ["small"])
        finally:
            limited.clean_up()


def start_waiting(server: Limited) -> subprocess.Popen[str]:
    """Start a server that is not going to be ready."""
    arguments = ["serve", "--data-dir", str(server.directory), "--port", str(server.port), "--http-port", "0"]
    with server.log.open("a") as log:
        server.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, "", *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )
    return server.process


def test_the_limits_of_this_test_are_those_of_its_processes() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    launch = LAUNCH.replace('"-m", "delayserver"', '"-c"')
    ran = subprocess.run(
        [sys.executable, "-c", launch, "RLIMIT_NOFILE=77", asked], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "(77, 77)" and resource.getrlimit(resource.RLIMIT_NOFILE) == before
