"""Embedded servers that crash, close, fork, have no room or share a process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from delayserver import embedded
from delayserver.client import Outcome
from delayserver.config.toml_file import ConfigError
from delayserver.embedded.running import _leaf
from delayserver.protocol.errors import ConnectionLost, DiskFull, RequestTimedOut
from store.errors import LockedError, SyncFailedError
from tests.delayserver.embedded.places import memory_of

LOOPS: list[Callable[[Any], Any]] = [trio.run, lambda main: asyncio.run(main())]


def with_crash(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Servers that are made from now on crash when the event is set."""
    from delayserver.upkeep.housekeeping import Housekeeping

    wanted = threading.Event()

    async def crash(_: Housekeeping) -> None:
        while not wanted.is_set():
            await trio.sleep(0.01)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Housekeeping, "run", crash)
    return wanted


def test_a_crash_of_the_server_raises_in_the_next_call_and_at_the_end_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = with_crash(monkeypatch)
    with pytest.raises(embedded.EmbeddedFailed, match="a bug") as raised, embedded.open() as here:
        here.send("a", b"", delay_ms=0)
        wanted.set()
        with pytest.raises(embedded.EmbeddedFailed):
            while True:
                here.ping()
        threading.Event().wait(0.01)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_the_cause_of_a_crash_is_not_the_wait_for_a_sync_that_it_ended() -> None:
    bug, follows = ZeroDivisionError("a bug"), SyncFailedError("an earlier sync of the broker failed")
    assert _leaf(ExceptionGroup("", [bug, ExceptionGroup("", [ExceptionGroup("", [follows])])])) is bug
    assert _leaf(ExceptionGroup("", [ExceptionGroup("", [follows])])) is follows


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the open files of a process are in /proc")
def test_a_crash_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted, directory = with_crash(monkeypatch), str(tmp_path / "data")
    with pytest.raises(embedded.EmbeddedFailed), embedded.open(directory) as here:
        here.publish("a", b"x")
        wanted.set()
        while here.ping():  # until it raises
            pass
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [path for link in links if (path := str(link.readlink())).startswith(directory)] == []


def test_a_pull_that_waits_hears_of_the_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = with_crash(monkeypatch)
    timer = threading.Timer(0.3, wanted.set)
    began_s = time.monotonic()
    with pytest.raises(embedded.EmbeddedFailed), embedded.open() as here:
        timer.start()
        here.pull("a", "g", wait_s=30)
    assert time.monotonic() - began_s < 15
    timer.join()


def test_on_trio_a_crash_cancels_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = with_crash(monkeypatch)

    async def main() -> None:
        async with embedded.open_async():
            wanted.set()
            await trio.sleep(30)

    began_s = time.monotonic()
    with pytest.raises(embedded.EmbeddedFailed, match="a bug"):
        trio.run(main)
    assert time.monotonic() - began_s < 15


def test_on_asyncio_a_crash_raises_in_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = with_crash(monkeypatch)

    async def main() -> None:
        async with embedded.open_async() as here:
            wanted.set()
            while True:
                await here.ping()

    with pytest.raises(embedded.EmbeddedFailed, match="a bug"):
        asyncio.run(main())


@pytest.mark.parametrize("loop", LOOPS, ids=["trio", "asyncio"])
def test_an_error_of_the_block_comes_out_as_it_is(loop: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with embedded.open_async() as here:
            await here.ping()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop(main)
    with pytest.raises(KeyError, match="mine"), embedded.open():
        raise KeyError("mine")


@pytest.mark.parametrize("loop", LOOPS, ids=["trio", "asyncio"])
def test_a_cancelled_program_still_stops_its_server_cleanly(loop: Callable[[Any], Any], tmp_path: Path) -> None:
    receipts = []

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with embedded.open_async(str(tmp_path / "data")) as here:
                receipts.append((await here.send("a", b"", delay_ms=60_000)).receipt)
                scope.cancel()
                await anyio.sleep(60)
        assert scope.cancelled_caught

    loop(main)
    with embedded.open(str(tmp_path / "data")) as here:
        assert here.lookup(receipts[0]).outcome is Outcome.PENDING


def test_messages_of_a_directory_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    with embedded.open(directory) as here:
        sent = here.send("a", b"kept", delay_ms=500)
    with embedded.open(directory) as here:
        (delivery,) = here.pull("a", "g", wait_s=20)
        assert (delivery.body, delivery.sequence) == (b"kept", sent.sequence)
        here.ack("a", "g", [delivery])
    with embedded.open(directory) as here:
        assert here.pull("a", "g") == []


def test_memory_is_gone_with_its_server() -> None:
    with embedded.open() as here:
        sent = here.send("a", b"", delay_ms=60_000)
    with embedded.open() as here:
        assert here.status()["accepted"] == 0
        assert here.connect().server_id not in sent.receipt


def test_a_call_after_the_end_has_a_named_error() -> None:
    here = embedded.open()
    other = here.client()
    assert other.ping() and here.ping()
    here.close()
    here.close()
    for client in (here, other, here.client()):
        with pytest.raises(embedded.EmbeddedClosed):
            client.ping()

    async def main() -> None:
        async with embedded.open_async() as gone:
            pass
        with pytest.raises(RuntimeError, match="async with block"):
            await gone.ping()

    for loop in LOOPS:
        loop(main)


def test_a_close_ends_a_pull_that_waits_in_another_thread() -> None:
    here, ended = embedded.open(), []

    def wait() -> None:
        try:
            here.pull("a", "g", wait_s=60)
        except (ConnectionLost, embedded.EmbeddedClosed) as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    here.close()
    thread.join(20)
    assert not thread.is_alive() and ended


def test_two_embedded_servers_of_one_process_share_nothing(tmp_path: Path) -> None:
    with embedded.open() as one, embedded.open(str(tmp_path / "data")) as two:
        assert one.connect().server_id != two.connect().server_id
        one.send("a", b"one", delay_ms=0)
        two.send("a", b"two", delay_ms=0)
        assert [d.body for d in one.pull("a", "g", wait_s=10)] == [b"one"]
        assert [d.body for d in two.pull("a", "g", wait_s=10)] == [b"two"]


def test_one_directory_has_one_server(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    with embedded.open(directory), pytest.raises(LockedError, match="in use by process"):
        embedded.open(directory)

    async def main() -> None:
        async with embedded.open_async(directory):
            pass

    with embedded.open(directory):
        for loop in LOOPS:
            with pytest.raises(LockedError, match="in use by process"):
                loop(main)
    for loop in LOOPS:
        loop(main)


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'storage\.durabilty', did you mean"):
        embedded.open(settings={"storage.durabilty": "os"})


def test_memory_has_a_bound_and_the_server_says_so() -> None:
    with embedded.open(settings={"storage.memory_bytes_max": "16MiB"}, retries=0) as here:
        with pytest.raises(DiskFull):
            for _ in range(100):
                here.send("a", bytes(512 * 1024), delay_ms=60_000)
        assert here.status()["accepted"] > 0
        assert memory_of(here).used_bytes <= 16 << 20


def test_a_start_without_room_is_stopped_and_says_why() -> None:
    # On a busy machine the start may need longer until it waits for room. Then it gets more time.
    for ready_timeout_s in (0.5, 5.0, 30.0):
        with pytest.raises(embedded.EmbeddedNotReady) as raised:
            embedded.open(settings={"storage.memory_bytes_max": "8KiB"}, ready_timeout_s=ready_timeout_s)
        if "on a disk with 0 bytes free" in str(raised.value):
            return
    raise raised.value


def test_a_start_that_was_stopped_in_the_middle_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from delayserver.server.delay_server import DelayServer
    from delayserver.startup.directory_opening import open_directory

    stopped = threading.Event()

    def open_slowly(*arguments: Any, **options: Any) -> Any:
        opened = open_directory(*arguments, **options)
        stopped.wait(30)
        return opened

    directory = str(tmp_path / "data")
    with monkeypatch.context() as patched:
        patched.setattr("delayserver.server.delay_server.open_directory", open_slowly)
        patched.setattr(DelayServer, "stop", _and_then(DelayServer.stop, stopped.set))
        with pytest.raises(embedded.EmbeddedNotReady, match="opening its data directory"):
            embedded.open(directory, ready_timeout_s=0.2)
    with embedded.open(directory) as here:
        assert here.ping()


def _and_then(first: Callable[[Any], None], then: Callable[[], None]) -> Callable[[Any], None]:
    def both(self: object) -> None:
        first(self)
        then()

    return both


def test_an_idle_server_in_memory_takes_little_of_it() -> None:
    with embedded.open() as here:
        here.send("a", b"x", delay_ms=0)
        assert memory_of(here).held_bytes < 1 << 20, "allocated space without bytes takes none"


def test_the_program_keeps_its_signals_logging_and_output(capfd: pytest.CaptureFixture[str]) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    roots, switch_s, out = list(logging.getLogger().handlers), sys.getswitchinterval(), sys.stdout
    with embedded.open() as here:
        here.send("a", b"", delay_ms=0)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == handlers
        assert logging.getLogger().handlers == roots and logging.getLogger("delayserver").handlers == []
        assert sys.getswitchinterval() == switch_s and sys.stdout is out
    assert capfd.readouterr() == ("", "")


def test_a_forked_process_cannot_call_the_server_and_does_it_no_harm(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    with embedded.open(directory) as here:
        here.send("a", b"before", delay_ms=0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                here.ping()
            except embedded.EmbeddedForked:
                here.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [d.body for d in here.pull("a", "g", wait_s=10)] == [b"before"]


def test_a_forked_process_that_lives_on_does_not_hold_the_directory(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    reading, writing = os.pipe()
    with embedded.open(directory):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent lets it go
            os._exit(0)
    try:
        with embedded.open(directory) as here:
            assert here.ping()
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_program_that_leaves_no_block_ends_and_loses_nothing(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    program = f"""
from delayserver import embedded
here = embedded.open({directory!r}, settings={{'stall_log_ms': 0}})
print(here.send("a", b"kept", delay_ms=0).receipt)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with embedded.open(directory) as here:
        (delivery,) = here.pull("a", "g", wait_s=20)
        assert delivery.body == b"kept"


def test_an_interrupt_stops_the_server_cleanly(tmp_path: Path) -> None:
    program = f"""
from delayserver import embedded
try:
    # A stall of a busy machine would be a line, and no fault of the server.
    with embedded.open({str(tmp_path / "data")!r}, settings={{'stall_log_ms': 0}}) as here:
        print("ready", flush=True)
        here.pull("a", "g", wait_s=60)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"interrupted\n", b"")


def test_on_trio_an_interrupt_amid_the_work_of_the_server_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from store.logs.message_log import MessageLog

    append, directory = MessageLog.append_durably, str(tmp_path / "data")

    def interrupted(self: MessageLog, *arguments: Any) -> Any:
        appended = append(self, *arguments)
        signal.raise_signal(signal.SIGINT)
        return appended

    async def main() -> None:
        async with embedded.open_async(directory) as here:
            monkeypatch.setattr(MessageLog, "append_durably", interrupted)
            with pytest.raises((ConnectionLost, embedded.EmbeddedFailed)):
                await here.send("a", b"x", delay_ms=0)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    monkeypatch.undo()
    with embedded.open(directory) as here:
        assert [delivery.body for delivery in here.pull("a", "g", wait_s=20)] == [b"x"]


def test_a_call_may_end_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded.open(timeout_s=0.2, retries=0) as here:
        from delayserver.embedded.pipe_listener import PipeTransport

        with monkeypatch.context() as patched:
            patched.setattr(PipeTransport, "read", lambda *_: None)
            with pytest.raises(RequestTimedOut):
                here.ping()
        assert here.ping(), "over a new connection"


def test_a_disk_that_fails_for_good_ends_the_server_and_the_program_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from store.disk.filesystem import RealFile

    def fail(self: RealFile, *_: object) -> bool:
        raise SyncFailedError(f"{self.path}: sync failed: simulated")

    with pytest.raises(embedded.EmbeddedFailed, match="sync failed"), embedded.open(str(tmp_path / "data")) as here:
        monkeypatch.setattr(RealFile, "write_through", fail)
        monkeypatch.setattr(RealFile, "datasync", fail)
        while True:
            here.send("a", b"", delay_ms=0)


def test_many_threads_share_one_server() -> None:
    with embedded.open() as here:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                with here.client() as client:
                    for turn in range(50):
                        client.send(f"s{number}", b"%d" % turn, delay_ms=0)
                    got = 0
                    while got < 50:
                        deliveries = client.pull(f"s{number}", "g", wait_s=10)
                        assert deliveries
                        got += client.ack(f"s{number}", "g", deliveries).acked
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert here.status()["accepted"] == 400
