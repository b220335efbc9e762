"""A host: a disk, a clock, and one server process after the other. It crashes, is killed, stops cleanly, and comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from delayserver.config.settings import Settings
from delayserver.front.front import SERVER
from delayserver.runtime.clock import Clock
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.workers import Workers
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors
from store.errors import DiskFullError, StoreError
from tests.fakes.disk import FakeDisk, FakeFile, SimulatedCrash
from tests.fakes.workers import FakeWorkers
from tests.simulation.clocks import WallClock
from tests.simulation.failures import ServerBroken
from tests.simulation.network import Network, SimulatedListener


class SimulatedDisk(FakeDisk):
    """Says nothing of the process that runs the simulation: the length of its id would be part of the seed."""

    def lock(self, path: str, content: bytes) -> FakeFile:
        return super().lock(path, b"a simulated process\n")


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a life. What was written by `sure_s`, in `SimulatedTime.worked_s`, and its sync began soon, is on disk."""

    sure_s: float


class Host:
    """Runs lives of a server on one disk. `run` is a task; the others ask it for things."""

    may_die_of: tuple[type[BaseException], ...] = (StoreError,)
    dies_of_a_full_disk = False

    def __init__(
        self,
        name: str,
        port: int,
        settings: Settings,
        clock: WallClock,
        network: Network,
        chance: Random,
        note: Callable[..., None],
        role: str = SERVER,
    ) -> None:
        self.name = name
        self.port = port
        self.address = f"{name}:{port}"
        self.settings = settings
        self.clock = clock
        self.disk = SimulatedDisk()
        self.workers: Workers = FakeWorkers()
        self.role = role
        self.server: DelayServer | None = None
        self.lives = 0
        self.crashes = 0
        self.deaths = 0
        self.up = trio.Event()
        self.open = trio.Event()
        # What a reload reads; a start has `settings`.
        self.file = settings
        self.down = trio.Event()
        self.died_of = ""
        self.on_change: Callable[[], None] = lambda: None
        self.on_reports: Callable[[list[str]], None] = lambda _damages: None
        self.on_no_checkpoint: Callable[[], None] = lambda: None
        self._network = network
        self._chance = chance
        self._note = note
        # How each life ended, and since when the disk of this one refuses something.
        self.endings: list[Ending] = []
        self._refuses_since_s = math.inf
        self._wanted = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._listener: SimulatedListener | None = None
        # Without syncs nothing is promised over a loss of power: there only processes die.
        self.synced = settings.storage.durability == "sync"
        self._power_fails = self.synced

    def clock_of_process(self) -> Clock:
        """What a server is given: the host's clock."""
        return self.clock

    def workers_of_process(self) -> Workers:
        """What a server is given: the host's workers."""
        return self.workers

    # -- asked for by the driver

    def start(self) -> None:
        """Begin the next life."""
        self.down = trio.Event()
        self._wanted.set()

    def crash(self, *, power: bool) -> None:
        """The process ends now, between two steps; with `power` the disk forgets as well."""
        self._power_fails = power and self.synced
        self.disk.dead = True
        if self._scope is not None:
            self._scope.cancel()

    def crash_after(self, operations: int, *, power: bool) -> None:
        """The process ends at the n-th operation on its disk."""
        self._power_fails = power and self.synced
        self.disk.crash_after(operations)

    def stop(self) -> None:
        """A clean stop, or the end of a start."""
        if self.server is not None and self.open.is_set():
            self.server.stop()

    def disk_refuses(self) -> None:
        """Take note that its disk refuses something from now on, in this life or in the one that starts now."""
        self._refuses_since_s = min(self._refuses_since_s, self._network.time.worked_s)

    @property
    def may_let_go(self) -> bool:
        """Whether its broker lets go of messages that a group holds for too long."""
        return bool(self.settings.broker.lag_bytes_max or self.settings.broker.lag_ms_max)

    async def serves(self) -> bool:
        """Whether a client may go on. If not, this waits a second at most, and the client asks again."""
        if self.open.is_set():
            return True
        with trio.move_on_after(1):
            await self.open.wait()
        return False

    async def up_or_down(self) -> None:
        """Return when the life that was asked for is ready or over."""
        async with trio.open_nursery() as nursery:

            async def first(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            await trio.lowlevel.checkpoint()
            nursery.start_soon(first, self.up)
            nursery.start_soon(first, self.down)

    @property
    def alive(self) -> bool:
        """Whether a server answers."""
        return self.up.is_set()

    # -- the task

    async def run(self) -> None:
        """Live whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self._live()

    async def _live(self) -> None:
        self.lives += 1
        self.died_of = ""
        self._note(self.name, "starts", life=self.lives)
        chance = Random(self._chance.getrandbits(64))
        server = self._new_server(
            Runtime.on(clock=self.clock_of_process(), chance=chance, workers=self.workers_of_process())
        )
        clean = False
        listener = self._network.listen(self.name, self.port, lambda: self.disk.dead)
        self._listener = listener
        try:
            with trio.CancelScope() as self._scope:
                await server.run(listener, self._ready, opened=partial(self._opened, server))
                clean = True
        except BaseException as error:  # noqa: BLE001 - a crash is one, and what is no crash is raised again
            self._explain(error)
        finally:
            if self.up.is_set():
                self.up = trio.Event()  # who waits already for this one waits on
            if self.open.is_set():
                self.open = trio.Event()
            listener.cut()
        if clean:
            server.close()
        self._end(clean)

    def _new_server(self, runtime: Runtime) -> DelayServer:
        return DelayServer(
            self.settings,
            role=self.role,
            runtime=runtime,
            doors=Doors(self.disk, self._network.connect),
            reread=lambda: self.file,
        )

    def _opened(self, server: DelayServer) -> None:
        self.server = server
        if server.parts.opened.found.lost and not server.parts.opened.directory.created:
            self.on_no_checkpoint()
        self.open.set()

    def _ready(self, _host: str, _port: int) -> None:
        self._note(self.name, "ready", life=self.lives)
        self.up.set()
        self.on_change()

    def _explain(self, error: BaseException) -> None:
        """A crash that was asked for, a death of the disk's making, or a bug."""
        leaves = _leaves(error)
        if any(isinstance(leaf, trio.Cancelled) for leaf in leaves) and not self.disk.dead:
            raise error
        crashed = [leaf for leaf in leaves if isinstance(leaf, SimulatedCrash | trio.Cancelled)]
        if crashed and self.disk.dead:
            self.died_of = "crash"
            return
        stores = [leaf for leaf in leaves if isinstance(leaf, StoreError)]
        full = any(isinstance(leaf, DiskFullError) for leaf in stores)
        if full and self.server is not None and not self.dies_of_a_full_disk:
            raise ServerBroken(f"{self.name} died of a full disk: {stores[0]}") from error
        if all(isinstance(leaf, self.may_die_of) for leaf in leaves):
            self.died_of = f"{type(leaves[0]).__name__}: {leaves[0]}"
            return
        raise ServerBroken(f"{self.name} died of a bug: {leaves[0]!r}") from error

    def _end(self, clean: bool) -> None:
        crashed = self.disk.dead
        forgets = (crashed and self._power_fails) or self.died_of not in ("", "crash")
        sure_s = self._network.time.worked_s if forgets else math.inf
        self.endings.append(Ending(min(sure_s, self._refuses_since_s)))
        self._refuses_since_s = math.inf
        if crashed:
            self.crashes += 1
            if self._power_fails:
                self.disk.crash(self._chance)
            else:
                self.disk.kill()
        else:
            self.disk.kill()  # files that a death left open are closed by the kernel
        how = "stopped cleanly" if clean else ("lost power" if crashed and self._power_fails else "was killed")
        if self.died_of and self.died_of != "crash":
            how = f"gave up: {self.died_of}"
        self.disk.no_more_faults()
        if self.server is not None:
            self.on_reports([*self.server.damage.corruption, *self.server.parts.broker.core.state.damages.texts])
        self._note(self.name, how, life=self.lives)
        self.server = None
        self._scope = None
        self.deaths += 1
        self.down.set()
        self.on_change()


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
