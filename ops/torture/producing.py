"""The sending side of the load: sends, duplicates, cancels, reschedules and lookups.

Each is noted in the record before it is sent and after it is answered. One `step` is one request, which raises one of `LOST`
if the server cannot answer any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

from delayserver.client import Client, Message, MessageKey
from delayserver.protocol.errors import DelayServerError, InDoubt, NotPrimary, StorageFailed
from delayserver.protocol.outcomes import Outcome
from ops.torture.record import Fate, Record, Sent

SUBJECT = "torture.orders"
# Some messages have a new subject, so that the table of names grows.
RARE_SUBJECT = "torture.rare."
# Much longer than any answer takes, so that a request survives a pause of the machine.
TIMEOUT_S = 120.0
# The connection is lost, or the member of a cluster leads no longer.
LOST = (InDoubt, NotPrimary)
# After these errors the result of a request is unknown.
UNKNOWN = (InDoubt, StorageFailed)


class Straight(Client):
    """A client of one server alone: it does not follow the primary of a cluster."""

    _FOLLOWS: ClassVar[bool] = False


class Producer:
    """Makes load with one client. Messages are due up to `delay_ms_max` after `due_base_ms`, which defaults to now."""

    def __init__(
        self,
        record: Record,
        address: str,
        chance: random.Random,
        *,
        delay_ms_max: int = 1200,
        due_base_ms: int | None = None,
        rare_subjects: bool = True,
    ) -> None:
        self._record = record
        self._chance = chance
        self._delay_ms_max = delay_ms_max
        self._due_base_ms = due_base_ms
        self._rare_subjects = rare_subjects
        self.client = Straight(address, timeout_s=TIMEOUT_S, retries=0)
        self._recent: list[Sent] = []
        self._steps = 0

    def step(self) -> None:
        """Sends one request of a random kind."""
        self._steps += 1
        kinds = (self.send_rows, self.send_columns, self.cancel, self.reschedule, self.send_copy, self.look_up)
        kind = self._chance.choices(kinds, weights=(40, 25, 12, 10, 8, 5))[0]
        kind()

    # -- sending

    def _due_ms(self) -> int:
        if self._due_base_ms is not None:
            return self._due_base_ms + self._chance.randint(0, self._delay_ms_max)
        return self._record.now_us() // 1000 + self._chance.randint(-50, self._delay_ms_max)

    def _make(self, subject: str = SUBJECT) -> Sent:
        due_ms = self._due_ms()
        expires_ms = due_ms + 300 if self._chance.random() < 0.03 else 0
        return self._record.new(subject, due_ms, with_id=self._chance.random() < 0.8, expires_ms=expires_ms)

    def send_rows(self) -> None:
        """Sends some messages in rows."""
        messages = [self._make() for _ in range(self._chance.randint(1, 20))]
        if self._rare_subjects and self._steps % 4 == 0:
            messages.append(self._make(f"{RARE_SUBJECT}{self._chance.randrange(1 << 30)}"))
        self.submit(messages)

    def submit(self, messages: list[Sent]) -> None:
        """Sends recorded messages, for the first time or again."""
        results = self.client.send_many([_message(sent) for sent in messages])
        for sent, result in zip(messages, results, strict=True):
            if not isinstance(result, DelayServerError):
                self._record.accepted([sent], [result.receipt])
                continue
            self._record.failed(result)
            if not isinstance(result, UNKNOWN):
                self._record.refused(sent, str(result))
        self._remember(messages)

    def send_columns(self) -> None:
        """Sends a batch in columns."""
        with_ids = self._chance.random() < 0.7
        count = self._chance.randint(1, 100)
        messages = [self._record.new(SUBJECT, self._due_ms(), with_id=with_ids) for _ in range(count)]
        answer = self.client.send_columns(
            SUBJECT,
            [sent.due_ms for sent in messages],
            [b"%d" % sent.number for sent in messages],
            message_ids=[sent.message_id for sent in messages] if with_ids else None,
        )
        refused = {row.index: row.error for row in answer.rejected}
        for index, error in refused.items():
            self._record.failed(error)
            self._record.refused(messages[index], str(error))
        taken = [sent for index, sent in enumerate(messages) if index not in refused]
        self._record.accepted(taken, answer.receipts())
        self._remember(taken)

    def send_copy(self) -> None:
        """Sends a message again, like a client that lost the answer. It must be delivered once."""
        original = self._pick(lambda sent: bool(sent.message_id) and sent.fate == Fate.ACCEPTED and not sent.replaces)
        if original is None:
            return
        try:
            result = self.client.send_many([_message(original)])[0]
        except DelayServerError:
            self._record.copies_unknown += 1
            raise
        if not isinstance(result, DelayServerError):
            self._record.copies += 1
            self._record.copy_receipts[result.receipt] = original.number
            return
        self._record.failed(result)
        self._record.copies_unknown += isinstance(result, UNKNOWN)

    def _remember(self, messages: list[Sent]) -> None:
        self._recent = (self._recent + messages)[-400:]

    def _pick(self, fits: Callable[[Sent], bool]) -> Sent | None:
        found = [sent for sent in self._recent if fits(sent) and sent.receipt]
        return self._chance.choice(found) if found else None

    # -- ending

    def cancel(self) -> None:
        """Cancels some messages, in whatever state they are."""
        open_ones = [sent for sent in self._recent if sent.fate == Fate.ACCEPTED and sent.receipt]
        chosen = self._chance.sample(open_ones, min(len(open_ones), self._chance.randint(1, 5)))
        self.submit_cancel(chosen)

    def submit_cancel(self, messages: list[Sent]) -> None:
        """Cancels messages, for the first time or again."""
        if not messages:
            return
        before = [sent.fate for sent in messages]
        self._record.ending(messages)
        results = self.client.cancel_many([sent.receipt for sent in messages])
        for sent, result, fate in zip(messages, results, before, strict=True):
            if not isinstance(result, DelayServerError):
                self._record.ended(sent, result.outcome)
                continue
            self._record.failed(result)
            if not isinstance(result, UNKNOWN):
                sent.fate = fate  # refused, so nothing has changed

    def reschedule(self) -> None:
        """Moves one message to another due time, with another number as its body."""

        def fits(sent: Sent) -> bool:
            return sent.fate == Fate.ACCEPTED and not (sent.arrivals or sent.expires_ms or sent.replaces)

        old = self._pick(fits)
        due_ms = self._due_ms()
        if old is None or due_ms == old.due_ms:  # the same id at the same time would be a duplicate
            return
        new = self._record.new(old.subject, due_ms, with_id=False)
        new.message_id, new.replaces = old.message_id, old.number
        old.replaced_by = new.number
        self._record.ending([old])
        try:
            result = self.client.reschedule(old.receipt, due_ms=new.due_ms, body=b"%d" % new.number)
        except UNKNOWN:
            raise
        except DelayServerError as error:
            self._record.failed(error)
            old.fate, old.replaced_by = Fate.ACCEPTED, 0
            self._record.refused(new, str(error))
            return
        self._record.ended(old, result.outcome)
        if result.outcome == Outcome.CANCELLED and result.new_receipt is not None:
            self._record.accepted([new], [result.new_receipt])
            self._remember([new])
        else:
            old.replaced_by = 0
            self._record.refused(new, f"the reschedule was answered {result.outcome.label}")

    def look_up(self) -> None:
        """Looks up an accepted message, which must never be unknown."""
        sent = self._pick(lambda sent: sent.fate == Fate.ACCEPTED)
        if sent is None:
            return
        self._record.looked_up(sent, self.client.lookup(sent.receipt).outcome)

    # -- after a crash

    def resolve(self) -> None:
        """Repeats the unanswered requests, as a client does, to learn their results."""
        self._resolve_reschedules()
        asked = [sent for sent in self._record.unanswered(Fate.ASKED) if sent.message_id]
        for start in range(0, len(asked), 1000):
            part = asked[start : start + 1000]
            for sent in part:
                sent.asked_again = True
            # Each may be a duplicate, also if this request is not answered either.
            self._record.copies_unknown += len(part)
            results = self.client.send_many([_message(sent) for sent in part])
            for sent, result in zip(part, results, strict=True):
                if not isinstance(result, DelayServerError):
                    self._record.accepted([sent], [result.receipt])
                else:
                    self._record.failed(result)
        ending = [sent for sent in self._record.unanswered(Fate.ENDING) if not sent.replaced_by]
        for start in range(0, len(ending), 1000):
            self.submit_cancel(ending[start : start + 1000])

    def _resolve_reschedules(self) -> None:
        """Checks unanswered reschedules: the old message is cancelled and the new one accepted, or neither."""
        for old in [sent for sent in self._record.unanswered(Fate.ENDING) if sent.replaced_by]:
            new = self._record.sent[old.replaced_by]
            outcome = self.client.lookup(old.receipt).outcome
            if outcome == Outcome.UNKNOWN:
                self._record.violate(f"{old.number} was accepted, and after its reschedule it is unknown")
            if outcome == Outcome.CANCELLED:
                self._record.ended(old, Outcome.CANCELLED)
                new.fate = Fate.ACCEPTED
                if new.message_id:
                    key = MessageKey(new.subject, new.message_id, new.due_ms)
                    if self.client.lookup(key).outcome == Outcome.UNKNOWN:
                        self._record.violate(f"{old.number} was moved to {new.number}, which is unknown")
            else:
                old.fate, old.replaced_by = Fate.ACCEPTED, 0
                self._record.refused(new, "the reschedule did not happen")


def _message(sent: Sent) -> Message:
    return Message(
        sent.subject,
        b"%d" % sent.number,
        due_ms=sent.due_ms,
        message_id=sent.message_id or None,
        expires_ms=sent.expires_ms or None,
    )
