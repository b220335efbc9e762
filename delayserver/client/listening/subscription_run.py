"""Runs one subscription of a listener on an event loop: the tasks and requests around its `ListenerCore`.

`HandlerWorkers` run the handlers, as tasks or in threads. Everything else is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.abc

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.consuming.lease_keeper import LeaseKeeper
from delayserver.client.consuming.node_clients import NodeClients
from delayserver.client.consuming.node_pulling import (
    PAUSE_AFTER_ERROR_S,
    ROUTE_INTERVAL_S,
    PulledNode,
    RouteFollower,
    pull_persistently,
)
from delayserver.client.consuming.said_lately import SaidLately, held_back_words
from delayserver.client.listening.handling import CutOff, Handling, Hook, Hooks, verdict_of
from delayserver.client.listening.listener_core import ListenerCore
from delayserver.client.listening.settlements import Settlement
from delayserver.client.listening.subject_source import SubjectSource
from delayserver.client.listening.subscription import SUBJECTS_MAX, Subscription, finds
from delayserver.client.values.retry import Retry
from delayserver.logs.events import EventLogger
from delayserver.logs.told import text_of, type_of
from delayserver.protocol.errors import DelayServerError, InvalidArgument, PositionOutOfRange, Refused

WAIT_S: Final = 25.0
"""How long a pull waits at its node before it is sent again."""

REQUESTS_AT_ONCE: Final = 64
"""Acks and nacks of a source under way at once. Nacks with delays or reasons of their own need a request each."""

EARLY_S: Final = 0.01
"""A pull that ends without messages after less than this is not repeated before, so that a server that does not let pulls
wait is not asked without a pause."""

SUBJECTS_INTERVAL_S: Final = 1.0
"""A listener with a pattern asks for new subjects this often. The first message of a new subject waits so long at most."""

END_PULLS_S: Final = 1.0
"""At the end the pulls under way get so much time. Messages of a later reply come again when their leases end."""

SETTLE_S: Final = 5.0
"""At the end the last acks and nacks get so much time. A delivery without the node's answer can come again."""

events = EventLogger("delayserver.client")


class HandlerWorkers(Protocol):
    """Runs handlers: asks the core for messages to start, and reports each begin and end to the `SubscriptionRun`."""

    async def run(self) -> None:
        """Run handlers, until the core stops and the last one has ended."""

    def wake(self) -> None:
        """Looks for a message to start."""

    def cut_off(self) -> None:
        """Ends the time for running handlers: nacks their messages, and lets `run` end."""


class _Feed:
    """The events of one source: whether it may pull, and whether it has something to settle."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        self.node: AsyncClient | None = None
        self.parked = False
        self._may_pull = anyio.Event()
        self._to_settle = anyio.Event()

    def open(self, node: AsyncClient) -> None:
        """The source pulls from this node, and settles there."""
        self.node = node

    async def wait_to_pull(self) -> None:
        """Wait for `unpark`."""
        self.parked = True
        try:
            await self._may_pull.wait()
        finally:
            self.parked = False
            self._may_pull = anyio.Event()

    def unpark(self) -> None:
        """The source may pull again, or is retired."""
        self._may_pull.set()

    async def wait_to_settle(self, most_s: float | None) -> None:
        """Wait for the next `settle`, but at most so long."""
        self._to_settle = anyio.Event()
        with anyio.move_on_after(most_s):
            await self._to_settle.wait()

    def settle(self) -> None:
        """There is something to settle, or the source is drained."""
        self._to_settle.set()


class SubscriptionRun:
    """One subscription while its listener runs."""

    def __init__(
        self,
        subscription: Subscription[Any],
        client: AsyncClient,
        hooks: Hooks,
        make_workers: Callable[[SubscriptionRun], HandlerWorkers],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``failed`` is called with an error that ends the listener."""
        self.subscription = subscription
        self.core = ListenerCore(subscription.group, subscription.settings)
        self._client = client
        self._nodes: NodeClients | None = None
        self._hooks = hooks
        self._failed = failed
        self._feeds: dict[SubjectSource, _Feed] = {}
        self._followers: dict[str, RouteFollower] = {}
        self._said = SaidLately()
        self._given_back = 0  # messages whose nacks were sent, or are about to be
        self._stop = anyio.Event()
        # The time of running handlers after a stop.
        self._grace = anyio.CancelScope()
        self._drained = anyio.Event()
        settings = subscription.settings
        self._leases = LeaseKeeper(
            subscription.name, subscription.group, settings.ack_timeout_s, settings.outlive_s,
            self._nodes_of_sources, partial(self.core.stats.add, "extended"),
        )  # fmt: skip
        self._workers = make_workers(self)

    def stop(self) -> None:
        """Begin the clean stop; may be called again. No handler begins from now on."""
        if not self.core.stopping:
            self.core.stop()
            self._stop.set()

    def cut_off(self) -> None:
        """Give running handlers no more time."""
        self.stop()
        self._grace.cancel()

    async def run(self, nodes: NodeClients) -> None:
        """Consume until `stop`, and then until running handlers have ended and their acks are at the nodes."""
        settings, self._nodes = self.subscription.settings, nodes
        async with anyio.create_task_group() as tasks:
            handlers_ended = anyio.Event()
            async with anyio.create_task_group() as background:
                for pattern in self.subscription.patterns:
                    background.start_soon(self._discover, pattern, background, tasks)
                for subject in self.subscription.plain:
                    self._follow(subject, background, tasks)
                tasks.start_soon(self._leases.run, self.look)  # also while the last handlers end
                tasks.start_soon(self._work, handlers_ended)
                await self._stop.wait()
                background.cancel_scope.cancel()
            nodes.end_waits()
            self._begin_stop(tasks)
            with self._grace, anyio.move_on_after(settings.stop_s):
                await handlers_ended.wait()
            if not handlers_ended.is_set():
                self._tell_cut_off()
                self._workers.cut_off()
                await handlers_ended.wait()
            self._wake_all()
            with anyio.move_on_after(END_PULLS_S + SETTLE_S):
                while self._feeds:
                    await self._drained.wait()
            tasks.cancel_scope.cancel()

    async def _work(self, ended: anyio.Event) -> None:
        try:
            await self._workers.run()
        finally:
            ended.set()

    def _begin_stop(self, tasks: anyio.abc.TaskGroup) -> None:
        for source, feed in self._feeds.items():
            if source.share.asked is None:
                feed.scope.cancel()
        tasks.start_soon(self._end_pulls)
        self._wake_all()
        self._workers.wake()

    async def _end_pulls(self) -> None:
        await anyio.sleep(END_PULLS_S)
        for feed in self._feeds.values():
            feed.scope.cancel()

    def _wake_all(self) -> None:
        for feed in self._feeds.values():
            feed.unpark()
            feed.settle()

    def _tell_cut_off(self) -> None:
        left = list(self.core.abandoned())
        names = ", ".join([f"{each.delivery.message_id} of {each.delivery.subject}" for each in left[:5]])
        events.warning(
            "handlers_cut_off",
            "{handler}: {handlers} handlers did not end within {stop_s:g} s and are cut off; their messages come again: "
            "{names}",
            handler=self.subscription.name, handlers=len(left), stop_s=self.subscription.settings.stop_s, names=names,
        )  # fmt: skip

    # -- subjects

    def _follow(self, subject: str, background: anyio.abc.TaskGroup, tasks: anyio.abc.TaskGroup) -> None:
        if subject not in self._followers:
            follower = RouteFollower(self._client, subject, tasks, partial(self._serve, subject))
            self._followers[subject] = follower
            background.start_soon(self._follow_route, follower)

    async def _follow_route(self, follower: RouteFollower) -> None:
        try:
            await follower.run()
        except DelayServerError as error:
            self._failed(error)

    async def _discover(self, pattern: str, background: anyio.abc.TaskGroup, tasks: anyio.abc.TaskGroup) -> None:
        """Follow the subjects that a pattern finds, and those that are new later. A subject may be at one shard alone, so
        each shard is asked, also one that is added later.
        """
        asked: set[int] = set()
        while True:
            try:
                clients = await self._client.shard_clients()
            except DelayServerError as error:
                if not error.retriable:
                    self._failed(error)
                    return
                await anyio.sleep(PAUSE_AFTER_ERROR_S)
                continue
            for shard in clients.keys() - asked:
                asked.add(shard)
                background.start_soon(self._discover_at, clients[shard], pattern, background, tasks)
            await anyio.sleep(ROUTE_INTERVAL_S)

    async def _discover_at(
        self, client: AsyncClient, pattern: str, background: anyio.abc.TaskGroup, tasks: anyio.abc.TaskGroup
    ) -> None:
        """`_discover` at one shard, whose numbers of subjects are its own."""
        after: int | str = 0
        server_id = ""
        while True:
            try:
                info = await client.connect()
                if info.server_id != server_id:  # the numbers of another server lead nowhere
                    after, server_id = 0, info.server_id
                page = await client.subjects_page(pattern, after=after)
            except DelayServerError as error:
                if not error.retriable:
                    self._failed(error)
                    return
                await anyio.sleep(PAUSE_AFTER_ERROR_S)
                continue
            after = page.next
            for subject in page.subjects:
                if finds(pattern, subject):
                    self._follow(subject, background, tasks)
            if len(self._followers) > SUBJECTS_MAX:
                self._failed(
                    InvalidArgument(f"{pattern!r} finds more than {SUBJECTS_MAX} subjects: use a narrower one")
                )
                return
            if not page.more:
                await anyio.sleep(SUBJECTS_INTERVAL_S)

    # -- pulls

    async def _serve(self, subject: str, pulled: PulledNode) -> None:
        """Pull a subject from a node until its scope is cancelled, and settle what came."""
        assert self._nodes is not None
        address = pulled.address
        source = self.core.add_source(subject, address)
        feed = self._feeds[source] = _Feed(pulled.scope)
        try:
            async with self._nodes.use(address) as node, anyio.create_task_group() as tasks:
                pulled.pull_over(node)
                feed.open(node)
                tasks.start_soon(self._settle, source, feed, node)
                with pulled.scope:
                    await pull_persistently(
                        partial(self._pull, source, feed, node),
                        f"{subject} from {address}",
                        self._refused,
                        self._followers[subject].doubt,
                        self._said,
                    )
                self.core.retire(source)
                feed.settle()
        finally:
            del self._feeds[source]
            self._tell_lost(self.core.remove(source, anyio.current_time()), "the listener ended")
            self._drained.set()
            self._drained = anyio.Event()

    async def _refused(self, error: Refused) -> None:
        self._failed(error)
        await anyio.sleep_forever()

    async def _pull(self, source: SubjectSource, feed: _Feed, node: AsyncClient) -> None:
        await node.connect()
        settings, choice = self.subscription.settings, self.subscription.choice
        while not source.retired:
            ask = self.core.next_ask(source)
            if ask is None:
                await feed.wait_to_pull()
                continue
            self.core.begin_pull(source, ask)
            asked_s = anyio.current_time()
            try:
                pulled = await node.pull_columns(
                    source.subject,
                    self.subscription.group,
                    min(ask.messages, node.limits.pull_messages_max),
                    min(WAIT_S, node.limits.wait_ms_max / 1000),
                    ack_timeout_s=settings.ack_timeout_s,
                    max_bytes=ask.bytes,
                    start=choice.start,
                    tags=choice.tags,
                    where=choice.where,
                    outlive_s=settings.outlive_s,
                )
                deliveries = pulled.deliveries()
            except PositionOutOfRange as error:  # reported once; the next pull continues behind the gap
                self.core.fail_pull(source)
                self.core.stats.add("gaps")
                events.error(
                    "messages_lost",
                    "{handler} lost messages of {source}: {reason}",
                    handler=self.subscription.name,
                    source=repr(source),
                    reason=str(error),
                )
                continue
            except BaseException:
                self.core.fail_pull(source)
                raise
            handlings = self.core.pulled(source, deliveries, anyio.current_time(), node.connection_number)
            self._call(self._hooks.received, handlings)
            if self.core.stopping:
                feed.settle()
            elif handlings:
                self._workers.wake()
            elif anyio.current_time() - asked_s < EARLY_S:
                await anyio.sleep(EARLY_S)

    # -- handlers

    def start(self, now_s: float) -> Handling | None:
        """The message to handle now; see `ListenerCore.start`."""
        handling = self.core.start(now_s)
        self._send_given_back()
        return handling

    def _send_given_back(self) -> None:
        """Send the nacks of messages that were given back since the last call, and pull again."""
        given_back = self.core.stats.given_back
        if given_back > self._given_back:
            self._given_back = given_back
            for feed in self._feeds.values():
                feed.settle()
                feed.unpark()

    def begins(self, handling: Handling) -> None:
        """A handler is about to run. May be called by its thread, but for the pulls."""
        if self._hooks.started is not None:
            self._hooks.started(handling)

    def pull_again(self, handling: Handling) -> None:
        """Lets the source of a message pull again, because a worker has the message. Stops if there were enough."""
        if self.core.is_enough:
            self.stop()
            return
        source = self.core.source_of(handling)
        feed = self._feeds.get(source)
        if feed is not None and feed.parked and self.core.next_ask(source) is not None:
            feed.unpark()

    def report_raised(self, handling: Handling, error: BaseException) -> None:
        """Calls the hook `failed` after a handler raised. Its thread may call this."""
        if isinstance(error, Retry):
            return
        if self._hooks.failed is not None:
            self._hooks.failed(handling)

    def finish(self, handling: Handling, error: BaseException | None, now_s: float) -> None:
        """Ends the work on a message whose handler has ended."""
        if error is not None and not isinstance(error, Retry):
            self.core.stats.add("failed")
            if not isinstance(error, CutOff):  # one line of the log names all that were cut off
                self._log_failure(handling, error, now_s)
        source = self.core.finish(handling, verdict_of(error), now_s, error)
        feed = self._feeds.get(source)
        if feed is not None:
            if source.settlements.rouses:
                feed.settle()
            if feed.parked and self.core.next_ask(source) is not None:
                feed.unpark()

    def fail(self, error: BaseException) -> None:
        """Ends the listener with this error."""
        self._failed(error)

    def _log_failure(self, handling: Handling, error: BaseException, now_s: float) -> None:
        held_back = self._said.say(f"{type_of(error)} {text_of(error)}"[:200], now_s)
        if held_back is not None:
            delivery = handling.delivery
            events.error(
                "handler_failed",
                "{handler} failed with message {message_id} of {subject}, attempt {attempt}, which comes again"
                + held_back_words(held_back),
                error,
                handler=self.subscription.name, message_id=delivery.message_id, subject=delivery.subject,
                attempt=delivery.attempt, held_back=held_back,
            )  # fmt: skip

    def _call(self, hook: Hook | None, handlings: Any) -> None:
        """Call a hook for each. Its error ends the listener."""
        if hook is None:
            return
        for handling in handlings:
            try:
                hook(handling)
            except Exception as error:  # noqa: BLE001 - raised where the listener ends
                self._failed(error)
                return

    def _nodes_of_sources(self) -> dict[SubjectSource, AsyncClient]:
        """The sources that pull, with their nodes."""
        return {source: feed.node for source, feed in self._feeds.items() if feed.node is not None}

    def look(self) -> None:
        """Tell of handlers that outlive their leases, and give back what waits too long."""
        for handling in self.core.look(anyio.current_time()):
            self._call(self._hooks.overdue, [handling])
            held_back = self._said.say("overdue", anyio.current_time())
            if held_back is not None:
                events.warning(
                    "handler_overdue",
                    "{handler} still handles message {message_id} of {subject} after the end of its lease, with an ack "
                    "timeout of {ack_timeout_s:g} s: it can come twice" + held_back_words(held_back),
                    handler=self.subscription.name, message_id=handling.delivery.message_id,
                    subject=handling.delivery.subject, ack_timeout_s=self.subscription.settings.ack_timeout_s,
                    held_back=held_back,
                )  # fmt: skip
        self._send_given_back()

    # -- acks and nacks

    async def _settle(self, source: SubjectSource, feed: _Feed, node: AsyncClient) -> None:
        """Send acks and nacks of a source, until it is retired and has no more."""
        while not self.core.is_drained(source):
            now_s = anyio.current_time()
            due_s = self.core.settle_due_s(source, now_s)
            if due_s is None or due_s > now_s:
                await feed.wait_to_settle(None if due_s is None else due_s - now_s)
                continue
            requests = self.core.take(source, now_s)
            if len(requests) == 1:
                await self._send(source, node, requests[0])
            else:
                for first in range(0, len(requests), REQUESTS_AT_ONCE):
                    async with anyio.create_task_group() as tasks:
                        for request in requests[first : first + REQUESTS_AT_ONCE]:
                            tasks.start_soon(self._send, source, node, request)
            if feed.parked and self.core.next_ask(source) is not None:  # too many were unsettled for a pull
                feed.unpark()

    async def _send(self, source: SubjectSource, node: AsyncClient, settlement: Settlement) -> None:
        subject, group, verdict = source.subject, self.subscription.group, settlement.verdict
        dead = 0
        try:
            if verdict.ack:
                unknown = (await node.ack(subject, group, settlement.deliveries)).unknown
            else:
                delay = None if verdict.delay_ms is None else timedelta(milliseconds=verdict.delay_ms)
                nacked = await node.nack(
                    subject, group, settlement.deliveries, delay,
                    level=verdict.level, reason=verdict.reason, unseen=verdict.given_back,
                    snooze=verdict.snoozed,
                )  # fmt: skip
                unknown, dead = nacked.unknown, nacked.dead_lettered
        except DelayServerError as error:
            self._tell_lost(self.core.fail_settlement(source, settlement, anyio.current_time()), str(error))
            if isinstance(error, Refused):
                self._failed(error)
            return
        now_s = anyio.current_time()
        late = self.core.finish_settlement(source, settlement, unknown, now_s, dead)
        self._call(self._hooks.acked if verdict.ack else self._hooks.nacked, settlement.handlings)
        self._tell_unknown(source, late, unknown - late, now_s)

    def _tell_unknown(self, source: SubjectSource, late: int, others: int, now_s: float) -> None:
        """Tell of deliveries that the node did not know any more: those settled `late`, and `others`."""
        if late:
            held_back = self._said.say("too late", now_s)
            if held_back is not None:
                events.warning(
                    "settled_too_late",
                    "{handler} settled {messages} messages of {subject} too late: their leases had ended, with an ack "
                    "timeout of {ack_timeout_s:g} s, so they may come again" + held_back_words(held_back),
                    handler=self.subscription.name, messages=late, subject=source.subject,
                    ack_timeout_s=self.subscription.settings.ack_timeout_s, held_back=held_back,
                )  # fmt: skip
        if others:
            held_back = self._said.say(f"unknown at {source.node}", now_s)
            if held_back is not None:
                events.warning(
                    "settled_unknown",
                    "{handler} settled {messages} messages of {subject} that {node} no longer had in flight, as after its "
                    "restart or a seek: they may come again" + held_back_words(held_back),
                    handler=self.subscription.name, messages=others, subject=source.subject, node=source.node,
                    held_back=held_back,
                )  # fmt: skip

    def _tell_lost(self, lost: Any, why: str) -> None:
        if lost:
            events.warning(
                "settle_failed",
                "{handler} could not settle {messages} messages before their leases ended, so they come again: {reason}",
                handler=self.subscription.name, messages=len(lost), reason=why,
            )  # fmt: skip
