"""Mistakes of the original and its relatives, put back one at a time: the simulation must notice each of them.

Each is a change of one function of the server while a block runs. Nothing here is used outside `test_mistakes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import trio

from delayserver.broker.actions import handing_out, indexing, retries
from delayserver.broker.actions.arrivals import Arrivals
from delayserver.broker.actions.dead_letter_burial import DeadLetters
from delayserver.broker.actions.dead_queue import DeadQueue
from delayserver.broker.actions.earlier_leases import EarlierLeases
from delayserver.broker.actions.group_moves import GroupMoves
from delayserver.broker.actions.leasing import Leasing
from delayserver.broker.actions.notes import ProgressNotes
from delayserver.broker.actions.policy_table import PolicyTable
from delayserver.broker.actions.presence import Presence
from delayserver.broker.actions.retries import RetryBatch
from delayserver.broker.actions.waiting_messages import WaitingKeys
from delayserver.broker.files.store import BrokerStore
from delayserver.broker.filters.filter import Filter
from delayserver.broker.queues import delivery_id
from delayserver.broker.queues.group_cursors import Cursor
from delayserver.broker.queues.key_order import WAITING, KeyOrder
from delayserver.broker.queues.places import Places
from delayserver.broker.service import publishing
from delayserver.broker.service import recovery as broker_recovery
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.pulls import PullService
from delayserver.client.values.timing import ServerClock
from delayserver.dispatch import broker_group, message_reader
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.front.connection import Connection, is_one_way
from delayserver.front.handlers import send as send_handlers
from delayserver.front.handlers.send import SendHandlers
from delayserver.load import window_reader
from delayserver.load.load_turn import LoadTurn
from delayserver.load.window_loads import WindowLoads
from delayserver.load.window_reader import WindowReader
from delayserver.operations.groups import broadcasting, filtering
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.operations.messages import check_backs, schedule_rules
from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.transactions import Transactions
from delayserver.operations.sending.send import SentColumns, SentRows
from delayserver.protocol.errors import DelayServerError, FilterInvalid, TooFar
from delayserver.protocol.outcomes import Outcome
from delayserver.receive.intake import Intake
from delayserver.replay import rows_to_memory
from delayserver.replay.deduplication import Deduplication
from delayserver.replay.placing import Placing
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.startup import pending_subjects
from delayserver.state.memory.keyed_lane import KeyedLane
from delayserver.state.memory.order_gate import OrderGate
from delayserver.state.memory.queueing import Queueing
from delayserver.state.memory.residency import Residency
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.upkeep.retention import Retention
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchLog
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleLog
from store.logs.window_log import WindowLog
from store.logs.window_recovery import WindowRecovery
from store.records import record, record_reader
from store.records.segment import Segment
from store.tables.identity import SequenceReservation
from store.tables.names import Names
from tests.simulation.clocks import WallClock
from tests.simulation.host import Host
from wheel.due_rows import DueRows

TICK_US = 10_000
Change = tuple[object, str, Callable[[Any], Any]]
"""An owner, the name of its attribute, and what the mistaken attribute is, made of the right one."""


def ack_before_sync() -> list[Change]:
    """Acks before fsync."""
    return [(MessageLog, "append_durably", lambda _: MessageLog.append_assumed)]


def checksum_never_checked() -> list[Change]:
    """CRC stored but never checked."""
    blind = lambda *_: 0  # noqa: E731
    return [(record, "_checksum", lambda _: blind), (record, "_extend", lambda _: blind),
            (record_reader, "_checksum", lambda _: blind)]  # fmt: skip


def replay_overlap_delivered_twice() -> list[Change]:
    """Replay overlap delivered twice."""
    return [(Placing, "_high_water", lambda _: lambda _self, _key: 0)]


def recovery_looks_at_last_two_segments() -> list[Change]:
    """Recovery looks at the last two dispatch segments only."""

    def mistaken(right: Any) -> Any:
        def read(self: Any, key: Any, stop: int | None = None) -> OutcomeIndex:
            return right(self, key, stop) if key in self.keys()[-2:] else OutcomeIndex()

        return read

    return [(DispatchLog, "index", mistaken)]


def gap_between_loader_and_replayer() -> list[Change]:
    """A record appended between "read the size" and "shift the cursor" is missed until restart."""

    def mistaken(right: Any) -> Any:
        async def load(self: Any, window_ms: int, turn: LoadTurn) -> int:
            reader, ends = self._reader, self._reader.ends(window_ms)
            await self._clock.sleep_ms(20)
            reader.ends = lambda window: ends if window == window_ms else WindowReader.ends(reader, window)
            try:
                return int(await right(self, window_ms, turn))
            finally:
                del reader.ends

        return load

    return [(WindowLoads, "_load_one", mistaken)]


def checkpoint_before_sync() -> list[Change]:
    """A checkpoint may cover unsynced data."""

    def mistaken(right: Any) -> Any:
        return lambda log, keys=None: None if isinstance(log, ScheduleLog) else right(log, keys)

    return [(WindowLog, "sync", mistaken)]


def sequence_restarts() -> list[Change]:
    """The sequence restarts after an empty tail."""

    def mistaken(right: Any) -> Any:
        def open_(*arguments: Any, **options: Any) -> Any:
            reservation = right(*arguments, **options)
            reservation.next = options.get("above", 0) + 1
            return reservation

        return open_

    return [(SequenceReservation, "open_unwritten", mistaken)]


def cleanup_by_age() -> list[Change]:
    """Cleanup by file age without looking at what is pending."""
    return [(Retention, "_may_go", lambda _: lambda _self, _start: True)]


def lost_files_forgotten() -> list[Change]:
    """A dispatch file that is missing, or was cut, counts as one that never was."""
    return [(WindowRecovery, "_note_loss", lambda _: lambda _self, _key, _known: None)]


def early_by_one_tick() -> list[Change]:
    """A message on an exact tick fired one tick early."""

    class Hasty(WallClock):
        def __init__(self, right: WallClock) -> None:
            self._right = right

        def now_us(self) -> int:
            return self._right.now_us() + TICK_US

        def now_ms(self) -> int:
            return self.now_us() // 1000

        def monotonic_us(self) -> int:
            return self._right.monotonic_us()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._right, name)

    return [(Host, "clock_of_process", lambda right: lambda self: Hasty(right(self)))]


def discarded_after_failures() -> list[Change]:
    """Delivery discarded after three failed puts."""

    def mistaken(right: Any) -> Any:
        def retry(self: Any, rows: DueRows) -> None:
            kept = np.flatnonzero(rows.payload["attempts"] < 3)
            right(self, DueRows(rows.due_ms[kept], rows.sequence[kept], rows.payload[kept]))

        return retry

    return [(BrokerGroup, "_retry", mistaken)]


def empty_body_on_retry() -> list[Change]:
    """A retry that sends an already-consumed buffer."""

    def mistaken(right: Any) -> Any:
        def read(schedule: Any, shipment: Any, server_id: int) -> Any:
            batch = right(schedule, shipment, server_id)
            if shipment.rows.payload["attempts"].any():
                return replace(batch, bodies=b"", bodies_length=np.zeros(len(batch), np.uint32))
            return batch

        return read

    return [(message_reader, "read_batch", mistaken)]


def delay_silently_clamped() -> list[Change]:
    """Delays over the maximum silently clamped."""

    def mistaken(right: Any) -> Any:
        def due(self: Any, due_ms: Any, delay_ms: Any, now_us: int) -> int:
            try:
                return int(right(self, due_ms, delay_ms, now_us))
            except TooFar:
                return now_us // 1000 + int(self._settings.delay_ms_max)

        return due

    return [(Intake, "_due", mistaken)]


def large_message_dropped_with_success() -> list[Change]:
    """An oversized message answered SUCCESS and dropped."""

    def mistaken(right: Any) -> Any:
        def place(self: Any, batch: Any, done: Any, source: Any) -> None:
            small = np.flatnonzero(batch.bodies_length < 2_000)
            if len(small):
                right(self, batch.take(small), done, source)

        return place

    return [(Placing, "place_batch", mistaken)]


def cancelled_and_delivered() -> list[Change]:
    """A cancel that takes nothing out of the wheel."""
    return [(Cancellation, "_take_out", lambda _: lambda _self, message, *_: np.full(len(message), Outcome.CANCELLED,
                                                                                     np.uint8))]  # fmt: skip


def copies_delivered() -> list[Change]:
    """No deduplication."""
    return [(Deduplication, "mark", lambda _: lambda _self, _key, rows, **_may_read: rows)]


def cancels_refused() -> list[Change]:
    """A cancel that is always answered `too_late`."""
    return [(Cancellation, "_take_out", lambda _: lambda _self, message, *_: np.full(len(message), Outcome.TOO_LATE,
                                                                                     np.uint8))]  # fmt: skip


def delay_cut_short() -> list[Change]:
    """A delay of which the last tenth is forgotten."""

    def mistaken(right: Any) -> Any:
        def due(self: Any, due_ms: Any, delay_ms: Any, now_us: int) -> int:
            return int(right(self, due_ms, delay_ms and delay_ms * 9 // 10, now_us))

        return due

    return [(Intake, "_due", mistaken)]


def expiry_forgotten_by_the_broker() -> list[Change]:
    """A broker that hands out what has expired."""
    return [(handing_out, "expired_rows", lambda _: lambda _expires_ms, _now_us: None)]


def broadcast_of_what_has_expired() -> list[Change]:
    """A broadcast group that gets messages that have expired."""
    return [(broadcasting, "expired_rows", lambda _: lambda _expires_ms, _now_us: None)]


def removed_by_the_wall_clock() -> list[Change]:
    """Windows retired by a time that the clock shows for a moment."""
    return [(BelievableClock, "now_us", lambda _: lambda self: self._clock.now_us())]


def forgotten_in_its_place() -> list[Change]:
    """A message that waits in its place, and is taken for done."""

    def mistaken(_right: Any) -> Any:
        def wait_in_place(self: Any, place: Any) -> None:
            self.settle(place.start, place.stop)

        return wait_in_place

    return [(Cursor, "wait_in_place", mistaken)]


def ends_behind_a_checkpoint_forgotten() -> list[Change]:
    """A start that does not count, for its subject, what ended behind the last checkpoint."""
    return [(pending_subjects, "_not_moved", lambda _: lambda _opened, _key, outcomes: outcomes.slice(0, 0))]


def index_without_ids_of_clients() -> list[Change]:
    """An index that is made and never searched with the hash that it has."""
    return [(indexing, "hash_ids", lambda right: lambda blob, lengths: right(blob, lengths) ^ np.uint64(1))]


def prepared_is_seen() -> list[Change]:
    """A transaction that is loaded and delivered like a message."""
    blind = lambda _column: False  # noqa: E731
    return [(window_reader, "has_any", lambda _: blind), (rows_to_memory, "has_any", lambda _: blind)]


def every_end_is_as_wanted() -> list[Change]:
    """A commit or a rollback that comes second, and is answered as if it had worked."""

    def mistaken(_right: Any) -> Any:
        async def tell(self: Any, result: Any, places: Any, wanted: Any, work: Any) -> None:
            pass

        return tell

    return [(Transactions, "_tell", mistaken)]


def policy_decides_at_once() -> list[Change]:
    """A policy that decides before the check-backs."""

    def mistaken(right: Any) -> Any:
        def read(bodies: Any, lengths: Any) -> Any:
            timers, sound = right(bodies, lengths)
            hurried = timers.copy()
            hurried["checks_max"] = 0
            return hurried, sound

        return read

    return [(check_backs, "read_timers", mistaken)]


def transaction_forgotten_behind_its_check_back() -> list[Change]:
    """A check-back without the timer that comes after it."""

    def mistaken(right: Any) -> Any:
        async def ask(self: Any, asked: Any, following: Any, timers: Any) -> None:
            await right(self, asked, [] if asked is not None else following, timers)

        return ask

    return [(check_backs.Pipeline, "ask", mistaken)]


def one_attempt_more() -> list[Change]:
    """A policy that counts redeliveries where it speaks of attempts."""

    def mistaken(right: Any) -> Any:
        return lambda self, key: right(self, key) + bool(right(self, key))

    return [(PolicyTable, "attempts_max", mistaken)]


def given_up_for_good() -> list[Change]:
    """A message that is given up, acked, and stored nowhere."""
    return [(Arrivals, "store_own", lambda _right: lambda _self, _batch, _now_us: [])]


def resent_and_kept() -> list[Change]:
    """A dead letter that is sent again, and stays one."""
    return [(DeadQueue, "settle", lambda _right: lambda self, claim: self.give_back(claim))]


def pages_of_subjects_that_skip_one() -> list[Change]:
    """Pages that begin one name too late: a pattern never finds that subject."""

    def mistaken(right: Any) -> Any:
        def codes_behind(names: Names, kind: int, code: int, scanned_max: int) -> Any:
            return right(names, kind, code + 1, scanned_max)

        return codes_behind

    return [(Names, "codes_behind", mistaken)]


def published_answered_before_its_sync() -> list[Change]:
    """A publish is answered when it is written, not when it is synced."""

    def append_all(right: Any) -> Any:
        return lambda store, batches, *, durably: right(store, batches, durably=False)

    def when_stored(_right: Any) -> Any:
        return lambda _commit, _end, done: done(None)

    return [(BrokerStore, "append_all", append_all), (BrokerCommit, "when_stored", when_stored)]


def published_columns_before_rows() -> list[Change]:
    """Of one step the publishes in columns are stored before those in rows, whatever came first."""

    def mistaken(right: Any) -> Any:
        return lambda parts: right(sorted(parts, key=lambda part: part.columns is None))

    return [(publishing, "_folded", mistaken)]


def seek_keeps_acks() -> list[Change]:
    """A seek that moves the position and keeps what was acked above it: those messages do not come again."""

    def mistaken(right: Any) -> Any:
        def move_to(cursor: Cursor, position: int, moves: int) -> None:
            end = cursor.next
            right(cursor, position, moves)
            if position + 1 < end - 1:
                cursor.acked.add(position + 1, end - 1)

        return move_to

    return [(Cursor, "move_to", mistaken)]


def seek_leaves_leases() -> list[Change]:
    """Deliveries of before a seek are acked, as if they were those of behind it."""

    def mistaken(_right: Any) -> Any:
        def delivery_ids(start: int, count: int, epoch: int, _moves: int, retry: bool) -> Any:
            return delivery_id.delivery_ids(start, count, epoch, 0, retry)

        return delivery_ids

    def as_of_no_seek(right: Any) -> Any:
        def move_to(cursor: Cursor, position: int, _moves: int) -> None:
            right(cursor, position, 0)

        return move_to

    return [(handing_out, "delivery_ids", mistaken), (Cursor, "move_to", as_of_no_seek)]


def read_skips_one() -> list[Change]:
    """A read that goes on one position too far."""

    def mistaken(right: Any) -> Any:
        def look(positions: GroupMoves, subject: int, position: int, max_messages: int, max_bytes: int) -> Any:
            looked = right(positions, subject, position, max_messages, max_bytes)
            return replace(looked, next=looked.next + 1) if looked.found is not None else looked

        return look

    return [(GroupMoves, "look", mistaken)]


def filter_forgotten_by_a_restart() -> list[Change]:
    """A group whose filter is not there after a restart, so that it gets all messages."""
    return [(Leasing, "lacks_filter", lambda _: lambda _self, _key: False)]


def match_passed_over() -> list[Change]:
    """A filter that forgets the last of several matches."""

    def mistaken(right: Any) -> Any:
        def rows(self: Any, batch: Any, start: int, stop: int) -> Any:
            found = right(self, batch, start, stop)
            return found if found is None or len(found) < 2 else found[:-1]

        return rows

    return [(Filter, "rows", mistaken)]


def next_segment_never_named() -> list[Change]:
    """A commit in a segment that was made ahead, acknowledged before the file has its name: the next start removes it."""

    def mistaken(_right: Any) -> Any:
        def take_name(segment: Segment, _naming: Any) -> None:
            segment._naming = None

        return take_name

    return [(Segment, "_take_name", mistaken)]


def a_read_that_ends_wakes_no_pull() -> list[Change]:
    """A group whose messages had to be read from the disk gets no turn when they are there."""
    return [(PullService, "_resume", lambda _right: lambda _self, _actor: None)]


def uncertain_hand_off_without_a_look() -> list[Change]:
    """A node that stores what it may have already, without a look into its store."""

    def mistaken(_right: Any) -> Any:
        def look(_self: Any, _state: Any, _known: Any) -> Any:
            yield from ()

        return look

    return [(Presence, "look", mistaken)]


def keys_that_wait_for_nobody() -> list[Change]:
    """A message goes out while an earlier one of its key is with another consumer."""

    def mistaken(_right: Any) -> Any:
        return lambda _order, slots: np.ones(len(slots), np.bool_)

    return [(KeyOrder, "admits", mistaken)]


def ordered_through_the_pipeline() -> list[Change]:
    """A nacked message with an order key comes back through the delay pipeline, and its key goes on meanwhile."""

    def mistaken(_right: Any) -> Any:
        return lambda _column: False

    return [(retries, "has_any", mistaken)]


def nothing_taken_back() -> list[Change]:
    """A message with an order key fails, and its consumer keeps the later ones of the key that it has."""

    def mistaken(_right: Any) -> Any:
        return lambda _cursor, _failed: []

    return [(Cursor, "recall", mistaken)]


def a_pause_that_frees_the_key() -> list[Change]:
    """A message with an order key waits for its pause, and its key does not wait with it."""

    def mistaken(right: Any) -> Any:
        def pause(self: Any, positions: Any, *rest: Any, **how: Any) -> Any:
            places = right(self, positions, *rest, **how)
            rows = self._find(positions)
            self._keys.release(self._columns.slot[rows[self._columns.state[rows] == WAITING]])
            return places

        return pause

    return [(KeyOrder, "pause", mistaken)]


def batches_of_one_key_at_once() -> list[Change]:
    """Two workers hand over messages of one order key at the same time."""

    def mistaken(_right: Any) -> Any:
        return lambda _lane, _buckets: None

    def ring(_right: Any) -> Any:
        return lambda lane, _buckets: lane.changed.ring()

    return [(KeyedLane, "hold", mistaken), (KeyedLane, "release", ring)]


def a_batch_in_the_order_of_acceptance() -> list[Change]:
    """Messages of an order key are handed over in the order in which they were accepted."""

    def mistaken(right: Any) -> Any:
        return lambda rows: right(rows.take(np.argsort(rows.sequence)))

    return [(broker_group, "keyed_shipments", mistaken)]


def queues_emptied_for_nobody() -> list[Change]:
    """Other routes: what waits in the queues leaves them, and nothing loads it again."""

    def mistaken(_right: Any) -> Any:
        def reroute(residency: Residency) -> None:
            for group in residency.groups.values():
                group.give_up_waiting()

        return reroute

    return [(Residency, "reroute", mistaken)]


def back_to_a_group_that_is_gone() -> list[Change]:
    """A batch fails whose group was removed meanwhile, and goes back to its queue."""
    return [(Queueing, "_kept_by", lambda _right: lambda _self, _group, rows: rows)]


def a_gate_that_waits_for_nothing() -> list[Change]:
    """A message with an order key leaves the wheel while an earlier one of its key is not in memory yet."""
    return [(OrderGate, "limit_ms", lambda _right: lambda _gate, _now_ms, to_ms: to_ms)]


def a_gate_that_forgets_running_commits() -> list[Change]:
    """A message with an order key leaves the wheel while an earlier one of its key, accepted in time, waits for its sync."""

    def mistaken(right: Any) -> Any:
        def begin(accepted: AcceptedLog) -> Any:
            group = right(accepted)
            accepted._end(group)
            return group

        return begin

    return [(AcceptedLog, "begin", mistaken)]


def refused_without_a_word() -> list[Change]:
    """A message of a one-way request is refused, and the producer never hears of it."""
    return [(Connection, "refuse_one_way", lambda _right: lambda _connection, _messages, _error: None)]


def one_way_send_that_loses_its_last() -> list[Change]:
    """A one-way send in rows takes all of its messages but the last, and counts none as refused."""

    def mistaken(right: Any) -> Any:
        def send_rows(handlers: SendHandlers, connection: Connection, request: Any) -> None:
            messages = request.arguments["messages"]
            if is_one_way(request) and len(messages) > 1:
                request.arguments["messages"] = messages[:-1]
            right(handlers, connection, request)

        return send_rows

    return [(SendHandlers, "_send_rows", mistaken)]


def refused_row_of_a_one_way_send_untold() -> list[Change]:
    """A one-way send counts its messages if all of them are refused, and not where some are."""

    def mistaken(right: Any) -> Any:
        def unless_one_way(connection: Connection, request: Any, messages: int, answer: Any) -> Any:
            count = right(connection, request, messages, answer)
            if count is answer:
                return answer

            def count_all_or_none(answered: SentRows | SentColumns | DelayServerError) -> None:
                if isinstance(answered, SentRows):
                    answered = SentRows(answered.messages, [])
                elif isinstance(answered, SentColumns):
                    answered = replace(answered, rejections=[])
                count(answered)

            return count_all_or_none

        return unless_one_way

    return [(send_handlers, "unless_one_way", mistaken)]


def one_way_send_told_before_its_sync() -> list[Change]:
    """A ping behind a one-way send is answered before the messages are durable, or refused."""

    def mistaken(right: Any) -> Any:
        def unless_one_way(connection: Connection, request: Any, messages: int, answer: Any) -> Any:
            count = right(connection, request, messages, answer)
            if count is not answer:
                number = connection.begin_one_way()  # the one behind it
                connection.end_one_way(number - 1, number)
            return count

        return unless_one_way

    return [(send_handlers, "unless_one_way", mistaken)]


def stored_behind_its_deadline() -> list[Change]:
    """A request whose deadline has passed is served all the same."""
    return [(Connection, "_require_time", lambda _right: lambda _connection, _request: None)]


def let_go_without_a_word() -> list[Change]:
    """A group lags by more than the node keeps for it, and goes on behind what it lost as if nothing was."""

    def mistaken(right: Any) -> Any:
        def take_passed(positions: GroupMoves, key: Any) -> None:
            right(positions, key)

        return take_passed

    return [(GroupMoves, "take_passed", mistaken)]


def a_bad_filter_is_no_filter() -> list[Change]:
    """A filter that does not parse counts as none, and the group gets everything."""

    def mistaken(right: Any) -> Any:
        async def compile_(self: Any, text: Any) -> Any:
            try:
                return await right(self, text)
            except FilterInvalid:
                return filtering.EVERYTHING

        return compile_

    return [(filtering.FilterCompiler, "compile", mistaken)]


def policies_lost_in_silence() -> list[Change]:
    """The table of policies is damaged, its groups go by the defaults, and no report says so."""

    def mistaken(right: Any) -> Any:
        return lambda fs, directory, server_id: replace(right(fs, directory, server_id), damage=None)

    return [(broker_recovery, "read_policies", mistaken)]


def a_hand_out_that_is_not_recorded() -> list[Change]:
    """A hand-out that counts only in memory: after a kill the message comes as if it had never come."""
    return [(ProgressNotes, "add_handed", lambda _right: lambda _notes, *_hand_out: None)]


def a_snooze_that_counts() -> list[Change]:
    """A delivery that the consumer hands back, and that counts as a failed attempt."""
    return [(retries._Moment, "attempts", lambda _right: property(lambda _moment: 1))]


def a_start_that_forgets_leases() -> list[Change]:
    """A start that does not end the leases of before as failed: a message comes again after its last attempt."""
    return [(EarlierLeases, "last_attempts", lambda _right: lambda _leases, *_messages: None)]


def a_lease_that_outlives_its_connection() -> list[Change]:
    """The leases of a consumer that asked for their end, and died, go on to the ack timeout."""
    return [(Redelivery, "end_leases_of", lambda _right: lambda _redelivery, _key, _owner, _outlive_ms: None)]


def an_extend_of_an_ended_lease_that_works() -> list[Change]:
    """A lease that has ended, and is extended while its message waits for its pause."""
    return [(Places, "are_leased", lambda _right: lambda _places, positions: np.ones(len(positions), np.bool_))]


def a_client_that_keeps_the_old_offset() -> list[Change]:
    """A client that counts its delays by what it learned before a step of the server's clock."""
    return [(ServerClock, "forget", lambda _right: lambda _clock: None)]


def a_skip_answered_before_its_sync() -> list[Change]:
    """An operator is told that a message was skipped before its dead letter is durable."""

    def mistaken(right: Any) -> Any:
        async def at_once() -> None:
            await trio.lowlevel.checkpoint()

        async def skip(self: Redelivery, *arguments: Any) -> int:
            self.__dict__["durable"] = at_once
            try:
                skipped: int = await right(self, *arguments)
            finally:
                self.__dict__.pop("durable", None)
            return skipped

        return skip

    return [(Redelivery, "skip", mistaken)]


def a_skip_that_leaves_its_key_blocked() -> list[Change]:
    """A skip that makes a dead letter of its message, and leaves the key to it."""

    def mistaken(right: Any) -> Any:
        def bury(letters: DeadLetters, batch: RetryBatch, *rest: Any) -> Any:
            given_up = batch.given_up
            assert given_up is not None
            if given_up.failures[0].reason == retries.SKIPPED:
                batch = replace(batch, given_up=replace(given_up, main=(), retry=()))
            return right(letters, batch, *rest)

        return bury

    return [(DeadLetters, "bury", mistaken)]


def a_skip_of_the_first_key_that_waits() -> list[Change]:
    """A skip of the first messages for which a key waits, and not of those that were named."""

    def mistaken(right: Any) -> Any:
        def chosen(keys: WaitingKeys, key: Any, wanted: Any, count_max: int) -> Any:
            return right(keys, key, None, count_max if wanted is None else len(wanted))

        return chosen

    return [(WaitingKeys, "chosen", mistaken)]


MISTAKES: tuple[Callable[[], list[Change]], ...] = (
    ack_before_sync,
    checksum_never_checked,
    replay_overlap_delivered_twice,
    recovery_looks_at_last_two_segments,
    gap_between_loader_and_replayer,
    checkpoint_before_sync,
    sequence_restarts,
    cleanup_by_age,
    early_by_one_tick,
    discarded_after_failures,
    empty_body_on_retry,
    delay_silently_clamped,
    large_message_dropped_with_success,
    cancelled_and_delivered,
    copies_delivered,
    cancels_refused,
    removed_by_the_wall_clock,
    delay_cut_short,
    expiry_forgotten_by_the_broker,
    forgotten_in_its_place,
    filter_forgotten_by_a_restart,
    match_passed_over,
    ends_behind_a_checkpoint_forgotten,
    prepared_is_seen,
    every_end_is_as_wanted,
    policy_decides_at_once,
    transaction_forgotten_behind_its_check_back,
    index_without_ids_of_clients,
    one_attempt_more,
    given_up_for_good,
    resent_and_kept,
    pages_of_subjects_that_skip_one,
    published_answered_before_its_sync,
    published_columns_before_rows,
    a_read_that_ends_wakes_no_pull,
    uncertain_hand_off_without_a_look,
    seek_keeps_acks,
    seek_leaves_leases,
    read_skips_one,
    next_segment_never_named,
    keys_that_wait_for_nobody,
    ordered_through_the_pipeline,
    nothing_taken_back,
    a_pause_that_frees_the_key,
    batches_of_one_key_at_once,
    a_batch_in_the_order_of_acceptance,
    queues_emptied_for_nobody,
    back_to_a_group_that_is_gone,
    a_gate_that_forgets_running_commits,
    a_gate_that_waits_for_nothing,
    refused_without_a_word,
    one_way_send_that_loses_its_last,
    refused_row_of_a_one_way_send_untold,
    one_way_send_told_before_its_sync,
    stored_behind_its_deadline,
    a_bad_filter_is_no_filter,
)


def moments_of_a_downtime_are_forgotten() -> list[Change]:
    """A schedule that is late goes on from now, though it wants all that it missed."""

    def mistaken(right: Any) -> Any:
        return lambda recurrence, rules, after_ms, now_ms, most: right(
            recurrence, rules, max(after_ms, now_ms - 2_000), now_ms, most
        )

    return [(schedule_rules, "decide", mistaken)]


def a_moment_is_decided_twice() -> list[Change]:
    """The next timer of a schedule is one for the moment that has just fired."""

    def mistaken(right: Any) -> Any:
        def decide(*arguments: Any) -> Any:
            decided = right(*arguments)
            if not decided.firings:
                return decided
            last = decided.firings[-1]
            return replace(decided, after_ms=last.ms - 1, following=last)

        return decide

    return [(schedule_rules, "decide", mistaken)]


# Those that the exact books notice.
COUNTING_MISTAKES: tuple[Callable[[], list[Change]], ...] = (
    a_hand_out_that_is_not_recorded,
    a_snooze_that_counts,
    a_start_that_forgets_leases,
    a_lease_that_outlives_its_connection,
    an_extend_of_an_ended_lease_that_works,
)

# Those that the books of skips notice.
SKIPPING_MISTAKES: tuple[Callable[[], list[Change]], ...] = (
    a_skip_answered_before_its_sync,
    a_skip_that_leaves_its_key_blocked,
    a_skip_of_the_first_key_that_waits,
)

# Those that the books of schedules notice.
SCHEDULING_MISTAKES: tuple[Callable[[], list[Change]], ...] = (
    moments_of_a_downtime_are_forgotten,
    a_moment_is_decided_twice,
)


@contextmanager
def made(mistake: Callable[[], list[Change]]) -> Iterator[None]:
    """The server with this mistake in it."""
    changes = [(owner, name, owner.__dict__[name], make) for owner, name, make in mistake()]
    for owner, name, right, make in changes:
        plain = right.__func__ if isinstance(right, classmethod) else right
        wrong = make(plain)
        setattr(owner, name, classmethod(wrong) if isinstance(right, classmethod) else wrong)
    try:
        yield
    finally:
        for owner, name, right, _ in changes:
            setattr(owner, name, right)
