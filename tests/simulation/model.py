"""The independent model: its own books of what was asked, answered and seen, and the verdict on every event.

It shares no code with the server and reads none of its files. A message is recognised by the token in its body. What
nobody answered (a connection that broke, a crash) stays `unknown`: it may have happened or not, but not both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from delayserver.config.settings import StorageSettings
from store.tables.identity import CLOCK_AHEAD_US
from tests.simulation.clocks import WallClock
from tests.simulation.damage import Damage, Flip
from tests.simulation.failures import SimulationFailure
from tests.simulation.filters import Wanted, properties_of, tag_of
from tests.simulation.settings import REDELIVERY_FIRST_MS

ENDS = ("delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "rolled_back")
UNKNOWN, ACCEPTED, REFUSED = "unknown", "accepted", "refused"
# This long after a consumer got a message, in a world that is well, its outcome is known to who asks.
OUTCOME_US_MAX = 2_000_000
# So far ahead of the clock a message may have been attempted before a crash, for all that the server knows then.
HORIZON_MS = 30_000
# A crash may come before the first checkpoint, and then the clock that was reserved with the sequences counts.
RESERVED_MS = CLOCK_AHEAD_US // 1000 + 60_000
# So much later a nack of the workload may have its messages again.
REDELIVERY_MS = 60_000
# So long a broker keeps what it needs to know a message again, while its server does not declare the window complete.
NODE_KEEPS_US = 7 * 86_400 * 1_000_000


@dataclass(slots=True)
class Sent:
    """One row that a client sent, or the new message of a reschedule."""

    token: int
    subject: str
    body: bytes
    message_id: str | None
    due_ms: int | None
    expires_ms: int
    state: str = UNKNOWN
    sequence: int = 0
    receipt: str = ""
    kind: int = 0
    """Gives its tag and its properties (`filters.py`): the same for all copies of a message, and for what replaces it."""
    rescheduled: bool = False
    derived_id: str = ""
    """The id that the server made, of a row sent without one."""

    def brief(self) -> str:
        """For traces: without the body."""
        return (
            f"m{self.token} {self.subject} id={self.message_id} due={self.due_ms} expires={self.expires_ms} "
            f"{self.state} sequence={self.sequence}{' rescheduled' if self.rescheduled else ''}"
        )


@dataclass(slots=True)
class Handed:
    """A message in the hands of a consumer group, for the last time."""

    wall_us: int
    lives: tuple[int, int]
    """The broker's life when it was asked for, and when it came: a request may wait for a broker that is down."""
    until_us: int
    steps: tuple[int, int]
    """How often the clock had been stepped when it was asked for, and when it came."""
    reason_to_come_again: str = ""
    acked: bool = False
    retry: bool = False
    times: int = 1
    attempt: int = 1
    uptime_us: int = 0


@dataclass(slots=True)
class Stored:
    """Where the queue of one broker has a message."""

    position: int
    lives: tuple[int, int]
    wall_us: int
    uptime_us: int
    certain: bool = False


@dataclass(slots=True)
class Identity:
    """What is delivered once: all copies with one subject, id and due time, or a single row without an id."""

    copies: list[Sent] = field(default_factory=list)
    arrived: dict[str, Handed] = field(default_factory=dict)
    arrived_tokens: set[int] = field(default_factory=set)
    stored: dict[str, Stored] = field(default_factory=dict)
    # The lowest attempt that a broker has told, by its place.
    attempts: dict[str, int] = field(default_factory=dict)
    cancelled: bool = False
    maybe_cancelled: bool = False
    cancels_open: int = 0
    expired: bool = False
    retired: bool = False
    deliveries: int = 0
    patience: int = 15
    last_answer: str = ""
    redispatched: bool = False
    """A redispatch covered its due time: from then on it may come again, under other sequences."""
    seen_us: int = 0
    """When a consumer first got it, and `settled`: the final answer that was given in `settled_life` of the server."""
    settled: str = ""
    settled_life: int = 0

    @property
    def accepted(self) -> int:
        """Copies that the server certainly took."""
        return sum(copy.state == ACCEPTED for copy in self.copies)

    @property
    def unknown(self) -> int:
        """Copies it may have taken."""
        return sum(copy.state == UNKNOWN for copy in self.copies)

    @property
    def unnamed(self) -> bool:
        """Whether it has, or may have, a copy whose sequence is not known: no answer came, or it was sent one-way."""
        return any(copy.state != REFUSED and not copy.sequence for copy in self.copies)

    @property
    def first_sequence(self) -> int:
        """The smallest sequence that was answered; 0 if none was."""
        return min([copy.sequence for copy in self.copies if copy.state == ACCEPTED], default=0)

    @property
    def expires_ms(self) -> int:
        """The latest expiry any copy has; 0 if one of them has none."""
        return 0 if any(not copy.expires_ms for copy in self.copies) else max(copy.expires_ms for copy in self.copies)

    @property
    def cancel_possible(self) -> bool:
        """Whether anybody asked for a cancel that may have worked."""
        return self.cancelled or self.maybe_cancelled or self.cancels_open > 0

    @property
    def may_expire(self) -> bool:
        return any(copy.expires_ms for copy in self.copies)


@dataclass(frozen=True, slots=True)
class Asked:
    """Counts, and messages that were accepted, when somebody began to ask for the status."""

    counts: dict[str, int]
    certain: list[Identity]


@dataclass(frozen=True, slots=True)
class Sending:
    """What was known when somebody began to send: the time, windows with messages, and windows that were retired."""

    asked_s: float
    asked_us: int
    steps: int
    held: set[int]
    anywhere: bool
    retired: set[int]


class Model:
    """Books and verdicts."""

    def __init__(self, note: Callable[..., None], damage: Damage, clock: WallClock, storage: StorageSettings) -> None:
        """`clock` and `storage` of the server."""
        self.clock = clock
        self.storage = storage
        self.rows: dict[int, Sent] = {}
        self.identities: dict[object, Identity] = {}
        self.by_receipt: dict[str, Sent] = {}
        self.sequences: set[int] = set()
        self.filters: dict[str, Wanted] = {}
        self.disturbed = False
        # Redispatches that were asked for, and that have no answer (yet): ranges of due times.
        self._redispatches: list[tuple[int, int]] = []
        # Subjects and groups from which a client pulls that does not say what it gets.
        self._pulled_unseen: set[tuple[str, str]] = set()
        self.server_id = ""
        self._note = note
        self._next_token = 1
        self.highest_sequence = 0
        self.counts: dict[str, int] = {}
        # Up to when the server may have reserved the clock in a life that left no checkpoint.
        self._reserved_ms = 0
        # Told by the world: the life of the server, and for how long all has been well for a subject.
        self.life: Callable[[], int] = lambda: 0
        self.damage = damage
        # Until when messages of a group and a subject were due that a broker may have let go.
        self._let_go_ms: dict[tuple[str, str], int] = {}
        self.well_for_us: Callable[[str], int] = lambda _subject: 0
        # What the books of other actors add to a count, at least and at most.
        self.deals: list[Callable[[str], tuple[int, int]]] = []
        # When messages of other actors, and timers of transactions, are due.
        self.others_due: list[Callable[[], Iterable[int]]] = []
        # How far ahead of the clock timers of other actors are set, where a server that was down is late with them.
        self.timers_ahead_ms: list[Callable[[], int]] = []
        # How many messages of these damage may have hit.
        self.hits: list[Callable[[], int]] = []

    def without_checkpoint(self) -> None:
        """The server opened a directory of before, and found no checkpoint in it."""
        self._reserved_ms = self.clock.peak_us // 1000 + RESERVED_MS

    # -- too old

    def asking_to_send(self, rows: list[Sent]) -> Sending:
        """Rows are about to be sent: what decides later whether they were rightly refused as too old, or accepted."""
        tokens = {row.token for row in rows}
        others = [row for row in self.rows.values() if row.state != REFUSED and row.token not in tokens]
        held = {self._window(row.due_ms) for row in others if row.due_ms is not None}
        held.update(self._window(due_ms) for others_due in self.others_due for due_ms in others_due())
        # One that was sent with a delay, and whose answer is lost, may lie in any window.
        anywhere = any(row.due_ms is None for row in others)
        retired = {
            self._window(row.due_ms)
            for row in self.rows.values()
            if row.state == ACCEPTED and row.due_ms is not None and self.identity(row).retired
        }
        now_s, now_us = self.clock.monotonic_us() / 1e6, self.clock.now_us()
        return Sending(now_s, now_us, self.clock.step_count, held, anywhere, retired)

    def _window(self, due_ms: int) -> int:
        return due_ms - due_ms % self.storage.window_ms

    def too_old(self, row: Sent, sending: Sending) -> None:
        """A row was refused as too old: by its age at some moment of the request, or because its own window may be
        retired. That needs a message in it, and a time behind its retention that the clock has held."""
        if row.due_ms is None:
            return
        storage, clock = self.storage, self.clock
        start_ms = self._window(row.due_ms)
        passed_s = clock.monotonic_us() / 1e6 - sending.asked_s
        latest_ms = max(sending.asked_us, clock.shown_since_us(passed_s)) // 1000
        if start_ms < self._window(latest_ms - storage.retention_ms):
            return
        held_ms = clock.held_us(storage.clock_hold_ms * 1000) // 1000
        if start_ms > held_ms - storage.retention_ms - storage.window_ms:
            self.fail(f"refused as too old, and the clock has held no time behind {held_ms}", row)
        # A redelivery is a record of its own, due when it was asked for or a pause later. So is a timer.
        ahead_ms = max([REDELIVERY_MS, *[ahead() for ahead in self.timers_ahead_ms]])
        known = start_ms in sending.held or sending.anywhere
        if not known and not clock.has_shown(start_ms - ahead_ms, start_ms + storage.window_ms):
            self.fail("refused as too old, and nothing was ever sent for its window", row)

    def _not_too_old(self, row: Sent, sending: Sending) -> None:
        if why := self.why_too_old(row, sending):
            self.fail(f"accepted {why}", row)

    def why_too_old(self, row: Sent, sending: Sending) -> str:
        """Why a row must be refused as too old; "" where it need not."""
        if row.due_ms is None or self.damage.flips:
            return ""
        start_ms = self._window(row.due_ms)
        if start_ms in sending.retired:
            return "for a window that was retired before"
        oldest_ms = self._window(sending.asked_us // 1000 - self.storage.retention_ms)
        if self.clock.step_count == sending.steps and start_ms < oldest_ms:
            return f"for a window before the oldest one kept, {oldest_ms}"
        return ""

    # -- asked

    def new_row(
        self,
        subject: str,
        due_ms: int | None,
        message_id: str | None,
        expires_ms: int,
        padding: int = 0,
        *,
        rescheduled: bool = False,
        kind: int | None = None,
    ) -> Sent:
        """A row about to be sent."""
        token = self._next_token
        self._next_token += 1
        row = Sent(token, subject, b"m%d." % token + b"." * padding, message_id, due_ms, expires_ms)
        row.rescheduled = rescheduled
        if kind is None:
            kind = token if message_id is None else int(message_id.removeprefix("id-"))
        row.kind = kind
        self.rows[token] = row
        self.identities.setdefault(self._key(row), Identity()).copies.append(row)
        return row

    def _key(self, row: Sent) -> object:
        if row.message_id is None or row.rescheduled:
            return row.token
        return (row.subject, row.message_id, row.due_ms)

    def identity(self, row: Sent) -> Identity:
        """What is delivered once for this row."""
        return self.identities[self._key(row)]

    def by_id(self, row: Sent) -> str:
        """The id that names this message and no other, "" if there is none: a rescheduled one keeps its id."""
        if row.message_id is None:
            return row.derived_id
        same = [
            other
            for other in self.rows.values()
            if other.rescheduled and (other.subject, other.message_id) == (row.subject, row.message_id)
        ]
        return "" if row.rescheduled or any(other.due_ms == row.due_ms for other in same) else row.message_id

    # -- answered

    def accepted(self, row: Sent, sequence: int, receipt: str, due_ms: int, sending: Sending) -> None:
        """A send was answered with a receipt."""
        self._not_too_old(row, sending)
        if sequence in self.sequences:
            self.fail(f"sequence {sequence} was given twice", row)
        self.sequences.add(sequence)
        self.highest_sequence = max(self.highest_sequence, sequence)
        if row.due_ms is not None and row.due_ms != due_ms:
            self.fail(f"asked for due_ms {row.due_ms}, the answer says {due_ms}", row)
        row.state, row.sequence, row.receipt, row.due_ms = ACCEPTED, sequence, receipt, due_ms
        self.by_receipt[receipt] = row

    def accepted_unnamed(self, row: Sent, sending: Sending) -> None:
        """A row of a one-way send, and the server has told that it refused none of them. Its sequence is known later."""
        self._not_too_old(row, sending)
        row.state = ACCEPTED

    def _named(self, row: Sent, sequence: int) -> None:
        """A delivery, or a lookup, says which sequence a row of a one-way send has."""
        if sequence in self.sequences:
            self.fail(f"sequence {sequence} was given twice", row)
        assert row.due_ms is not None
        self.sequences.add(sequence)
        self.highest_sequence = max(self.highest_sequence, sequence)
        row.sequence, row.receipt = sequence, f"{self.server_id}-{row.due_ms:012x}-{sequence:012x}"
        self.by_receipt[row.receipt] = row

    def refused(self, row: Sent) -> None:
        """A send was refused: nothing of it may ever arrive."""
        if self.identity(row).arrived_tokens & {row.token}:
            self.fail("refused, but it had arrived", row)
        row.state = REFUSED

    def cancel_answered(self, row: Sent, outcome: str, peak_ms: int, now_us: int) -> None:
        """`cancelled` is a promise; the other answers are checked against what was seen."""
        identity = self.identity(row)
        if outcome in ("cancelled", "already_cancelled"):
            if identity.arrived_tokens:
                self.fail(f"answered {outcome}, but it had been delivered", row)
            if outcome == "already_cancelled" and not identity.cancel_possible:
                self.fail("already_cancelled, but no client cancelled it", row)
            identity.cancelled = True
        else:
            self.looked_up(row, outcome, peak_ms, now_us)

    def looked_up(self, row: Sent, outcome: str, peak_ms: int, now_us: int) -> None:
        """An answer of lookup, or of a cancel that did not cancel."""
        identity = self.identity(row)
        self._check_settled(row, identity, outcome, now_us)
        if outcome != "deduplicated":
            identity.last_answer = outcome
        if outcome == "unknown":
            self.fail("the server does not know a message that it accepted", row, kept=True)
        if identity.cancelled and outcome not in ("cancelled", "already_cancelled", "deduplicated", "retired"):
            self.fail(f"answered {outcome}, but it was cancelled", row)
        if outcome == "cancelled" and not identity.cancel_possible:
            self.fail("cancelled, but no client cancelled it", row)
        if outcome == "cancelled":
            identity.cancelled = True
        if outcome == "deduplicated" and len(identity.copies) < 2:
            self.fail("deduplicated, but it has no copy", row)
        identity.retired |= outcome == "retired"
        if outcome == "expired":
            if not identity.may_expire:
                self.fail("expired, but it has no expiry", row)
            if min(copy.expires_ms for copy in identity.copies if copy.expires_ms) > peak_ms:
                self.fail("expired before its time", row)
            identity.expired = True
            if identity.arrived_tokens:
                self.fail("expired, but it had been delivered", row)
        never_before_due = outcome in ("delivered", "in_flight", "retrying", "retired")
        if never_before_due and row.due_ms is not None and row.due_ms > peak_ms:
            self.fail(f"{outcome} before its due time {row.due_ms}", row)
        far = row.due_ms is not None and row.due_ms > max(peak_ms, self._reserved_ms) + HORIZON_MS
        if outcome == "too_late" and far and not self.damage.flips:
            self.fail(f"too_late long before its due time {row.due_ms}", row)
        if outcome == "dead_lettered":
            self.fail("dead-lettered without a policy for it", row)

    def _check_settled(self, row: Sent, identity: Identity, outcome: str, now_us: int) -> None:
        """What has an outcome keeps it as long as the server lives, and what was handed out soon has one."""
        open_ = outcome in ("pending", "in_flight", "retrying")
        if open_ and identity.settled and identity.settled_life == self.life():
            self.fail(f"answered {outcome}, but it was {identity.settled} before", row)
        if open_ and identity.seen_us:
            seen_for_us = now_us - identity.seen_us
            if seen_for_us > OUTCOME_US_MAX and self.well_for_us(row.subject) > seen_for_us:
                self.fail(f"answered {outcome}, {seen_for_us / 1e6:.1f} s after a consumer got it", row)
        if outcome in ("delivered", "expired", "cancelled", "dead_lettered"):
            final = identity.settled if identity.settled_life == self.life() else ""
            if final and final != outcome:
                self.fail(f"answered {outcome}, but it was {final} before", row)
            identity.settled, identity.settled_life = outcome, self.life()

    def described(self, row: Sent, result: dict[str, object], peak_us: int) -> None:
        """The other fields of an answer of lookup: whose they are, and that they are possible."""
        identity = self.identity(row)
        if result.get("subject", row.subject) != row.subject or result.get("due_ms", row.due_ms) != row.due_ms:
            self.fail(f"looked up as {result}", row)
        copies = {copy.receipt for copy in identity.copies if copy.state == ACCEPTED}
        if not row.sequence and len(identity.copies) == 1:
            self._named(row, int(str(result["receipt"])[-12:], 16))
            copies = {row.receipt}
        if not identity.unnamed and {result["receipt"], result.get("original_receipt", row.receipt)} - copies:
            self.fail(f"looked up as {result}, its receipts are {sorted(copies)}", row)
        dispatched_us = result.get("dispatched_us", 0)
        assert isinstance(dispatched_us, int)
        if dispatched_us and not (row.due_ms or 0) * 1000 <= dispatched_us <= peak_us:
            self.fail(f"looked up as dispatched at {dispatched_us}, the clock has shown at most {peak_us}", row)

    def redispatches(self, from_ms: int, to_ms: int) -> None:
        """A redispatch is asked for: messages due in this range may come again, also those that are sent from now on."""
        self._redispatches.append((from_ms, to_ms))

    def redispatched(self, from_ms: int, to_ms: int) -> None:
        """That redispatch was answered: messages that are sent from now on do not come again."""
        self._redispatches.remove((from_ms, to_ms))
        for row in self.rows.values():
            if row.due_ms is None or from_ms <= row.due_ms < to_ms:
                self.identity(row).redispatched = True

    def may_come_again(self, row: Sent) -> bool:
        """Whether a redispatch, answered or not, covers the message."""
        return self.identity(row).redispatched or self._may_be_redispatched(row)

    def _may_be_redispatched(self, row: Sent) -> bool:
        """Whether a redispatch without an answer covers the message."""
        return any(row.due_ms is None or from_ms <= row.due_ms < to_ms for from_ms, to_ms in self._redispatches)

    def pulled_unseen(self, subject: str, group: str) -> None:
        """A client pulls, and its messages may come back without having been seen."""
        self._pulled_unseen.add((subject, group))

    # -- seen

    def arrived(
        self,
        group: str,
        place: str,
        fields: dict[str, object],
        *,
        wall_us: int,
        peak_us: int,
        lives: tuple[int, int],
        asked_us: int,
        until_us: int,
        steps: tuple[int, int],
    ) -> Sent | None:
        """A consumer was handed a message by the broker at `place`. Checks all that can be said about it at once. None
        for one that a redispatch brought again."""
        body = fields["body"]
        assert isinstance(body, bytes)
        token = int(body[1 : body.index(b".")]) if body[:1] == b"m" and b"." in body else 0
        row = self.rows.get(token)
        if row is None or row.body != body:
            raise SimulationFailure(f"a body arrived that no client sent: {body[:60]!r}")
        identity = self.identity(row)
        due_ms, dispatched_us = fields["due_ms"], fields["dispatched_us"]
        assert isinstance(due_ms, int)
        assert isinstance(dispatched_us, int)
        retry = bool(fields["retry"])
        identity.redispatched |= self._may_be_redispatched(row)
        again = identity.redispatched and fields["sequence"] not in self._sequences_of(identity)
        if not again:
            self._check_row(row, fields)
        if dispatched_us < due_ms * 1000 or peak_us < due_ms * 1000:
            self.fail(f"early: due {due_ms}, dispatched {dispatched_us}, the clock has shown at most {peak_us}", row)
        if dispatched_us > peak_us:
            self.fail(f"dispatched at {dispatched_us}, a time the clock has never shown", row)
        if row.state == REFUSED:
            self.fail("it was refused and arrived all the same", row)
        if not self.wants(group, row):
            self.fail(f"it arrived at {group}, whose filter it does not match", row)
        if (fields.get("tag"), fields["properties"]) != (tag_of(row.kind), properties_of(row.kind)):
            self.fail(f"it arrived with tag {fields.get('tag')} and properties {fields['properties']}", row)
        if identity.cancelled:
            # A copy whose original is lost is a message of its own.
            self.fail("it was answered `cancelled` and arrived all the same", row, kept=len(identity.copies) == 1)
        if identity.expired:
            self.fail("it was `expired` and arrived all the same", row)
        # What comes again by a redispatch never expires. Beside one, the first delivery of a message that nobody knows the
        # sequence of, or a redelivery, may be of either.
        if fields["expires_ms"] not in ((0, row.expires_ms) if again else (row.expires_ms,)):
            self.fail(f"arrived with the expiry {fields['expires_ms']}", row)
        late = fields["expires_ms"] and dispatched_us >= row.expires_ms * 1000
        if late and not (retry or self.disturbed):
            self.fail(f"dispatched at {dispatched_us}, after its expiry {row.expires_ms}", row)
        # The broker handed it out after it was asked, and by the clock that the consumer reads.
        if fields["expires_ms"] and asked_us >= row.expires_ms * 1000 and steps[0] == steps[1]:
            self.fail(f"handed out behind its expiry, to a pull that came at {asked_us}", row)
        identity.arrived_tokens.add(token)
        if len(identity.arrived_tokens) > 1:
            self.fail(f"copies {sorted(identity.arrived_tokens)} of one message arrived", row)
        if again and not retry:
            if identity.unnamed:
                # The sequence of a copy without an answer is not known: it may as well be this one.
                identity.arrived.setdefault(
                    f"{group}@{place}", Handed(wall_us, lives, until_us, steps, uptime_us=self._uptime_us)
                )
            return None
        identity.deliveries += 1
        identity.seen_us = identity.seen_us or wall_us
        hands = f"{group}@{place}"
        attempt = fields["attempt"]
        assert isinstance(attempt, int)
        self._check_again(row, identity, hands, wall_us, lives, steps, retry, attempt)
        known = identity.arrived.get(hands)
        times = known.times + 1 if known else 1
        identity.arrived[hands] = Handed(
            wall_us, lives, until_us, steps, retry=retry, times=times, attempt=attempt, uptime_us=self._uptime_us
        )
        if not retry:
            unseen = self.disturbed or (row.subject, group) in self._pulled_unseen
            self._check_attempt(row, identity, place, attempt, times, may_have_come=unseen)
            self._check_place(row, identity, place, fields["delivery"], lives, wall_us)
        return row

    def _check_attempt(
        self, row: Sent, identity: Identity, place: str, attempt: int, times: int, *, may_have_come: bool
    ) -> None:
        """Where two brokers have a message, only the first of them may call it the first attempt. `times`: how often it
        came to these hands, from its place in the queue too. `may_have_come`: it may have been handed out unseen before."""
        identity.attempts[place] = min(attempt, identity.attempts.get(place, attempt))
        first = [where for where, lowest in identity.attempts.items() if lowest == 1]
        if len(first) > 1:
            self.fail(f"each of {first} calls it attempt 1", row, again=True)
        if attempt != 1 and times == 1 and not may_have_come:
            self.fail(f"attempt {attempt}, and nothing has happened", row)

    def _check_place(
        self, row: Sent, identity: Identity, place: str, delivery: object, lives: tuple[int, int], wall_us: int
    ) -> None:
        """The hand-off to the project's own broker is exactly once: one place in its queue for one message."""
        assert isinstance(delivery, int)
        position = delivery & ((1 << 44) - 1)
        known = identity.stored.get(place)
        if known is None:
            if identity.stored and not self.disturbed:
                self.fail(f"{place} has it, and so have {list(identity.stored)}", row)
            identity.stored[place] = Stored(position, lives, wall_us, self._uptime_us)
            return
        if known.position != position and not self._forgotten(known, wall_us):
            alone = len(identity.copies) == 1
            if known.certain:
                self.fail(f"{place} has it at {known.position}, acked, and again at {position}", row, kept=alone)
            if known.lives[0] == lives[1]:
                what = f"{place} has it twice, at {known.position} and {position}, without a crash"
                self.fail(what, row, kept=alone)
        known.position, known.lives, known.wall_us, known.uptime_us = position, lives, wall_us, self._uptime_us

    @property
    def _uptime_us(self) -> int:
        return self.clock.monotonic_us()

    def _forgotten(self, before: Handed | Stored, now_us: int) -> bool:
        """Whether a broker may have let go of what it had then, before a server that was down, or whose clock was set back,
        delivered it again. What was stored while the clock was ahead ages from its return on."""
        passed_us = max(now_us - before.wall_us, self._uptime_us - before.uptime_us)
        return self.disturbed and passed_us > NODE_KEEPS_US

    def _sequences_of(self, identity: Identity) -> set[object]:
        """Those that its deliveries may carry; that of a copy without an answer is whatever nobody else has."""
        known: set[object] = {copy.sequence for copy in identity.copies if copy.state == ACCEPTED}
        return known

    def _check_row(self, row: Sent, fields: dict[str, object]) -> None:
        if row.due_ms is None and not fields["retry"]:
            # Sent with a delay, and the answer was lost. A redelivery has a due time of its own.
            row.due_ms = fields["due_ms"]  # type: ignore[assignment]
        elif fields["retry"] is False and fields["due_ms"] != row.due_ms:
            self.fail(f"due {row.due_ms}, arrived as {fields['due_ms']}", row)
        if fields["subject"] != row.subject:
            self.fail(f"arrived in the subject {fields['subject']}", row)
        if row.message_id is not None and fields["message_id"] != row.message_id:
            self.fail(f"arrived with the id {fields['message_id']}", row)
        if row.state != ACCEPTED or fields["retry"]:
            return
        if not row.sequence:
            assert isinstance(fields["sequence"], int)
            self._named(row, fields["sequence"])
        if fields["sequence"] != row.sequence:
            self.fail(f"arrived as sequence {fields['sequence']}", row)

    def _check_again(
        self,
        row: Sent,
        identity: Identity,
        hands: str,
        wall_us: int,
        lives: tuple[int, int],
        steps: tuple[int, int],
        retry: bool,
        attempt: int,
    ) -> None:
        before = identity.arrived.get(hands)
        if before is None or identity.redispatched:
            return
        places = {known.partition("@")[2] for known in identity.arrived}
        if (lives[1] > 1 or len(places) > 1) and (retry or before.retry):
            # A crash between the commit of a redelivery and the end of the old delivery leaves both: the second one
            # is from a lease that ended, maybe of a pull whose reply was lost. And where a failover of unknown result
            # left a copy at another broker, the lease of that one can end here: it goes through the same pipeline.
            return
        if retry and self.disturbed and row.subject.startswith("remote."):
            return  # likewise, and the reply to the pull of that copy was lost: no consumer has got it at the other broker
        if not retry and self._forgotten(before, wall_us):
            return
        if before.acked:
            self.fail(f"{hands} acked it, and got it again", row, again=True)
        explained = (
            before.reason_to_come_again
            or (before.lives[0] != lives[1] and "crash")
            or (before.steps[0] != steps[1] and "the clock was stepped")
            # A lease ends behind its time, and the first redelivery waits for a pause on top.
            or (wall_us >= before.until_us + REDELIVERY_FIRST_MS * 1000 and "its lease ended")
        )
        if not explained:
            self.fail(f"a duplicate for {hands} that nothing explains", row, again=True)
        if before.lives == lives and before.lives[0] == before.lives[1] and attempt <= before.attempt:
            self.fail(f"attempt {attempt} for {hands}, and the one before was {before.attempt}", row, again=True)

    def acked(self, group: str, place: str, rows: list[Sent]) -> None:
        """An ack was answered: it is durable, and so is what it acks."""
        for row in rows:
            identity = self.identity(row)
            handed = identity.arrived[f"{group}@{place}"]
            handed.acked = True
            if not handed.retry:
                identity.stored[place].certain = True

    def nacked(self, group: str, place: str, rows: list[Sent]) -> None:
        """A nack was sent: they come again, now or after their lease."""
        for row in rows:
            self.identity(row).arrived[f"{group}@{place}"].reason_to_come_again = "nack"

    # -- the end

    def open_identities(self, groups: list[str]) -> list[Identity]:
        """What must still arrive at one of the groups."""
        return [identity for identity in self.identities.values() if self._is_open(identity, groups)]

    def _is_open(self, identity: Identity, groups: list[str]) -> bool:
        arrived = {hands.partition("@")[0] for hands in identity.arrived}  # first, since most have
        if not any(
            self.wants(group, identity.copies[0]) and not self._let_go(group, identity)
            for group in groups
            if group not in arrived
        ):
            return False
        if not identity.accepted or identity.cancelled or identity.maybe_cancelled or identity.expired:
            return False
        # Past its expiry a message may expire anywhere, also on its way back to a consumer that did not ack it.
        ends = identity.last_answer in ("delivered", "expired", "retired") or identity.unknown
        return not (identity.may_expire and ends) and not self.damaged(identity)

    def group_was_let_go(self, group: str, subject: str) -> None:
        """A broker kept no more for a group that lagged: of what was due until now it may have lost any message."""
        self._let_go_ms[group, subject] = self.clock.peak_us // 1000

    def _let_go(self, group: str, identity: Identity) -> bool:
        copy = identity.copies[0]
        until_ms = self._let_go_ms.get((group, copy.subject), -1)
        return until_ms >= 0 and (copy.due_ms is None or copy.due_ms <= until_ms)

    def filter_of(self, group: str) -> dict[str, str]:
        """What a group's pulls say of its filter."""
        wanted = self.filters.get(group)
        return {} if wanted is None else wanted.arguments

    def wants(self, group: str, row: Sent) -> bool:
        """Whether a group's filter matches a message."""
        wanted = self.filters.get(group)
        return wanted is None or wanted.matches(row.kind)

    def next_due_ms(self, now_ms: int) -> int | None:
        """The earliest due time after now of what has not arrived."""
        waiting = [
            copy.due_ms
            for identity in self.identities.values()
            if not identity.arrived_tokens and not identity.cancelled
            for copy in identity.copies
            if copy.state != REFUSED and copy.due_ms is not None and copy.due_ms > now_ms
        ]
        return min(waiting, default=None)

    def asking(self) -> Asked:
        """What is known when `status` is asked for: the answer may be older than what other answers said meanwhile."""
        certain = [identity for identity in self.identities.values() if identity.accepted and not identity.may_expire]
        return Asked(dict(self.counts), certain)

    def check_status(self, status: dict[str, int], asked: Asked, peak_ms: int) -> None:
        """What must hold of any answer to `status`: the balance, counts that never fall, not even over a crash, and that
        what is not due yet is pending. `peak_ms`: the latest time the clock has shown."""
        ends = sum(status[name] for name in ENDS)
        self._within("accepted - all outcomes - pending", status["accepted"] - ends - status["pending"], 0, 0)
        self._within("early", status["early"], 0, 0)
        if self.damage.flips:
            return  # what a lost file held is counted nowhere
        for name in ("accepted", *ENDS):
            self._within(name, status[name], asked.counts.get(name, 0), 1 << 62)
            self.counts[name] = max(self.counts.get(name, 0), status[name])
        certain = sum(
            not identity.cancel_possible and min(copy.due_ms or 0 for copy in identity.copies) > peak_ms
            for identity in asked.certain
        )
        self._within("pending", status["pending"], certain, 1 << 62)

    def check_running(self, status: dict[str, int], *, settled: bool = False) -> None:
        """What must hold at any time when no request is under way. `settled`: also none of a transaction."""
        everything = list(self.identities.values())
        accepted = sum(identity.accepted for identity in everything)
        unknown = sum(identity.unknown for identity in everything)
        # What a flipped bit may have hit may be counted nowhere; all else is, and nothing is counted that was not sent.
        hit = [identity for identity in everything if self.damaged(identity)]
        rows_hit = sum(identity.accepted + identity.unknown for identity in hit)
        self._count("accepted", status, accepted - rows_hit, accepted + unknown, settled=settled)
        # An outcome may be counted of a message that is lost, and so is not.
        lost = rows_hit + sum(hits() for hits in self.hits)
        self._count("pending", status, -lost, accepted + unknown, settled=settled)
        self._within("early", status["early"], 0, 0)

    def check_balance(self, status: dict[str, int]) -> None:
        """The server's counts against the books, as exactly as unknown answers allow."""
        self.check_running(status, settled=True)
        everything = list(self.identities.values())
        # Messages that a flipped bit may have hit may have any outcome or none; those of the others are exact.
        hit = [identity for identity in everything if self.damaged(identity)]
        rows_hit = sum(identity.accepted + identity.unknown for identity in hit) + sum(hits() for hits in self.hits)
        sound = [identity for identity in everything if not self.damaged(identity)] if hit else everything
        self._within("pending", status["pending"], -rows_hit, rows_hit)
        self._within("dead_lettered", status["dead_lettered"], 0, 0)
        arrived, ended = self._arrived_and_ended(sound)
        self._count("delivered", status, arrived, arrived + ended + rows_hit)
        cancelled = sum(identity.cancelled for identity in sound)
        maybe = sum(identity.maybe_cancelled and not identity.cancelled for identity in sound)
        self._count("cancelled", status, cancelled, cancelled + maybe + rows_hit)
        self._count("rolled_back", status, 0, 0)
        ends = sum(status[name] for name in ENDS)
        self._within("accepted - all outcomes", status["accepted"] - ends, -rows_hit, rows_hit)
        copies = sum(max(identity.accepted - 1, 0) for identity in sound)
        copies_most = sum(max(identity.accepted + identity.unknown - 1, 0) for identity in sound)
        self._count("deduplicated", status, copies, copies_most + rows_hit)

    def waits_for_leases(self, status: dict[str, int]) -> bool:
        """Whether messages whose sending nobody answered are delivered and have not arrived: a pull without an answer may
        hold them until its lease ends."""
        sound = [identity for identity in self.identities.values() if not self.damaged(identity)]
        return status["delivered"] > sum(self._arrived_and_ended(sound)) and any(
            identity.unknown and not identity.arrived_tokens for identity in sound
        )

    def _arrived_and_ended(self, sound: list[Identity]) -> tuple[int, int]:
        """How many of these messages arrived, and how many others may have ended at a node: expired, or let go."""
        unseen = [identity for identity in sound if not identity.arrived_tokens]
        groups = {group for group, _subject in self._let_go_ms}
        ended = [each for each in unseen if each.may_expire or any(self._let_go(group, each) for group in groups)]
        return len(sound) - len(unseen), len(ended)

    def _count(self, name: str, status: dict[str, int], low: int, high: int, *, settled: bool = True) -> None:
        """A count lies within what the books of messages say and what the deals add. Not `settled`: the status may be older
        than what a deal was answered."""
        added = [deals(name) for deals in self.deals]
        least, most = sum(low for low, _ in added), sum(high for _, high in added)
        self._within(name, status[name], low + (least if settled else 0), high + most)

    def _within(self, name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise SimulationFailure(f"{name} is {value}, by the books it lies within {low} and {high}")

    def damaged(self, identity: Identity, *, again: bool = False) -> list[Flip]:
        """The flipped bits that may be the cause of whatever is wrong with a message; with `again`, of its coming again."""
        if not self.damage.flips:
            return []
        sequences = {copy.sequence for copy in identity.copies if copy.sequence}
        if any(not copy.sequence and copy.state != REFUSED for copy in identity.copies):
            sequences |= self._hit_of_unknown()  # its answer did not come: one of those may be its own
        dues = [copy.due_ms for copy in identity.copies if copy.due_ms is not None]
        return self.damage.explains(sequences, dues, again=again)

    def _hit_of_unknown(self) -> set[int]:
        """Sequences that a flipped bit hit and that no answer has named."""
        known = {copy.sequence for identity in self.identities.values() for copy in identity.copies}
        return {sequence for flip in self.damage.flips for sequence in flip.sequences} - known

    def fail_of(self, what: str, rows: list[Sent]) -> None:
        """A broken promise about a number of messages. No damage explains it: it is not about what lies on the disk."""
        self._note("model", "FAILURE", promise=what, rows=[row.brief() for row in rows])
        raise SimulationFailure(f"{what}: {[row.token for row in rows]}")

    def fail(self, what: str, row: Sent, *, again: bool = False, kept: bool = False) -> None:
        """Raise the verdict with all that is known of the message; where a flipped bit may be the cause, keep it until
        it is known whether somebody names that one. `again`: what is wrong is only that it came again. `kept`: a promise
        that holds although a file was cut."""
        identity = self.identity(row)
        flips = [
            flip for flip in self.damaged(identity, again=again) if not (kept and flip.is_cut and not flip.uncovered)
        ]
        if flips and not what.startswith("early"):
            self._note("model", "excused", promise=what, row=row.brief(), flips=[flip.path for flip in flips])
            self.damage.excused.append((flips, f"{what}: {row.brief()}"))
            return
        self._note("model", "FAILURE", promise=what, row=row.brief(), last_answer=identity.last_answer)
        for copy in identity.copies:
            self._note("model", "copy", row=copy.brief())
        for group, handed in identity.arrived.items():
            self._note("model", "handed", group=group, **asdict(handed))
        raise SimulationFailure(f"{what}: {row.brief()} (last answer: {identity.last_answer or 'none'})")
