"""A producer that sends without replies, in rows and in columns, several requests at a time over one connection.

Its messages stand in the books of the model like those of a send whose answer is lost. The reply to a `ping` behind them
tells how many were refused. The others are then accepted and durable: they must arrive, also over a crash. If the
connection breaks before, the messages stay `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from delayserver.protocol.errors import DelayServerError
from tests.simulation.actors import REFUSED_FOR_CERTAIN_NOT, SUBJECTS, Producer, columns_of, look_up, map_of
from tests.simulation.client import Client, Lost
from tests.simulation.model import ACCEPTED, UNKNOWN, Model, Sending, Sent
from tests.simulation.settings import DELAY_MS_MAX, HOUR_MS

# Requests on their way at the same time.
POSTS_AT_ONCE = 4
# Far beyond every step of the clock.
TOO_FAR_MS = DELAY_MS_MAX + 400 * 24 * HOUR_MS
# Errors of good messages: the server cannot take them now, or they are late for their window, or the clock was stepped.
MAY_REFUSE = ("not_ready", "shutting_down", "disk_full", "queue_full", "storage_failed", "too_old", "too_far")
# Of these, errors of whole requests.
NOTHING_TAKEN = ("not_ready", "shutting_down", "queue_full")


@dataclass(frozen=True, slots=True)
class Post:
    """One request: its good messages, and how many others the server must refuse."""

    rows: list[Sent]
    bad: int
    sending: Sending
    asked_ms: int


class OneWayProducer(Producer):
    """Sends without replies, and asks now and then how many messages were refused."""

    def __init__(
        self,
        client: Client,
        model: Model,
        clock: Any,
        chance: Random,
        note: Callable[..., None],
        rows_max: int,
        brokers: dict[str, set[str]],
    ) -> None:
        super().__init__(client, model, clock, chance, note, rows_max, brokers)
        # Requests of this connection of which nobody has told yet what was refused.
        self._posts: list[Post] = []
        self._connection = 0
        self._told_before = 0
        # Messages with an id that a connection took with it: they may be sent again.
        self._in_doubt: list[Sent] = []
        # Of messages that were told together: how many must be accepted of those that are `unknown`, and how many cannot.
        self._accepted_of_unknown = 0
        self._refused_of_unknown = 0

    async def act(self) -> None:
        """Some requests without a reply, mostly a question about them, and what else becomes of their messages."""
        with self._client.noted(self._note):
            for _ in range(self._chance.choice([1, 1, 2, POSTS_AT_ONCE])):
                await self._post_again_if_lost()
            kind = self._chance.random()
            if kind < 0.2:
                return  # a later reply tells it
            if kind < 0.35:
                await self._status()  # this reply tells a part, maybe
            await self._ask_what_was_refused()
            kind = self._chance.random()
            if kind < 0.2:
                await self._cancel()
            elif kind < 0.3:
                await self._reschedule()
            elif kind < 0.5:
                await self._look_up()
            elif kind < 0.7:
                await self._look_up_by_id()

    # -- sending

    async def _post_again_if_lost(self) -> None:
        """The connection may have broken long before. Who sends learns it from the next request alone."""
        try:
            await self._post()
        except Lost as error:
            self._note(self._client.name, "not sent", why=str(error))
            await self._post()

    async def _post(self) -> None:
        """One request. Some have messages that the server must refuse, or a deadline that has passed."""
        chance, count = self._chance, self._chance.choice([1, 2, 5, self._rows_max])
        if self._in_doubt and chance.random() < 0.5:
            rows, self._in_doubt = [self._again(row) for row in self._in_doubt[:count]], self._in_doubt[count:]
        else:
            times: list[int] = []
            rows = [self._new_row(times) for _ in range(count)]
        bad = [self._bad_row() for _ in range(chance.choice([0, 0, 0, 1, 2]))]
        every = rows + bad
        chance.shuffle(every)
        in_rows = chance.random() < 0.6
        arguments: dict[str, Any] = {"messages": [map_of(row) for row in every]} if in_rows else columns_of(every)
        late = chance.random() < 0.06
        if late:
            arguments["deadline_ms"] = 1
        tokens = [row.token for row in rows]
        self._note(self._client.name, "posts", tokens=tokens, bad=len(bad), late=late, in_rows=in_rows)
        self.rows += rows
        post = Post(rows, len(bad), self._model.asking_to_send(rows), self._clock.now_ms())
        if late:
            for row in rows:
                self._model.refused(row)
            post = Post([], len(every), post.sending, post.asked_ms)
        try:
            await self._client.post("send", arguments)
        except Lost as error:
            for row in rows:
                if not error.sent:
                    self._model.refused(row)
            if error.sent:
                self._doubt(rows)
            raise
        if self._client.connections != self._connection:
            self._begin_connection()
        self._posts.append(post)

    def _again(self, row: Sent) -> Sent:
        """The same id, subject and due time again."""
        return self._model.new_row(row.subject, row.due_ms, row.message_id, row.expires_ms)

    def _bad_row(self) -> Sent:
        subject, now_ms = self._chance.choice(SUBJECTS), self._clock.now_ms()
        if self._chance.random() < 0.5:
            return Sent(0, "", b"m0.", None, now_ms, 0)
        return Sent(0, subject, b"m0.", None, now_ms + TOO_FAR_MS, 0)

    def _begin_connection(self) -> None:
        """What was posted over the connection before is never told."""
        for post in self._posts:
            self._doubt(post.rows)
        self._posts = []
        self._connection = self._client.connections
        self._told_before = self._client.one_way_refused

    def _doubt(self, rows: list[Sent]) -> None:
        self._in_doubt += [row for row in rows if row.message_id is not None and row.state == UNKNOWN]

    # -- what the server tells

    async def _ask_what_was_refused(self) -> None:
        """The reply waits until all is known of what was sent before it over this connection."""
        await self._client.request("ping", {})
        if self._client.connections != self._connection:
            self._begin_connection()
            return
        posts, self._posts = self._posts, []
        told = self._client.one_way_refused - self._told_before
        self._told_before = self._client.one_way_refused
        self._note(self._client.name, "told", refused=told, first=self._client.first_refusal if told else "")
        self._judge(posts, told)

    def _judge(self, posts: list[Post], told: int) -> None:
        """Compare what was refused with what had to be, and settle what is known of the messages."""
        must = sum(post.bad for post in posts)
        rows: list[tuple[Sent, Post]] = []
        for post in posts:
            for row in post.rows:
                if self._is_too_far(row, post) or self._model.why_too_old(row, post.sending):
                    self._model.refused(row)
                    must += 1
                else:
                    rows.append((row, post))
        if not must <= told <= must + len(rows):
            words = f"{must} one-way messages had to be refused, {len(rows)} others were sent, {told} were refused"
            self._model.fail_of(words, [row for post in posts for row in post.rows])
        first = self._client.first_refusal
        if told and not must and first not in MAY_REFUSE:
            self._model.fail_of(f"good one-way messages were refused as {first}", [row for row, _ in rows])
        if len(posts) == 1 and told and first in NOTHING_TAKEN and told < must + len(rows):
            words = f"refused as {first}, and {told} of {must + len(rows)} one-way messages counted"
            self._model.fail_of(words, [row for row, _ in rows])
        refused = told - must
        certain = len(posts) == 1 and first not in REFUSED_FOR_CERTAIN_NOT
        if refused == len(rows) and (certain or not rows):
            for row, _ in rows:
                self._model.refused(row)
        elif refused:
            # Which of them is not known. So they stay `unknown`, and their number is.
            self._accepted_of_unknown += len(rows) - refused
            self._refused_of_unknown += refused if certain else 0
        else:
            for row, post in rows:
                self._accept(row, post)

    def _is_too_far(self, row: Sent, post: Post) -> bool:
        assert row.due_ms is not None
        latest_ms: int = max(post.asked_ms, self._clock.now_ms()) + DELAY_MS_MAX + 1
        stepped: bool = self._clock.step_count != post.sending.steps
        return row.due_ms > latest_ms and not stepped

    def _accept(self, row: Sent, post: Post) -> None:
        """One with an expiry may end without a word that names it, so its number alone is in the books."""
        if row.expires_ms:
            self._accepted_of_unknown += 1
        else:
            self._model.accepted_unnamed(row, post.sending)

    def range_of(self, name: str) -> tuple[int, int]:
        """What is known of `unknown` messages beside what the model knows of each."""
        if name != "accepted":
            return 0, 0
        return (0 if self._model.damage.flips else self._accepted_of_unknown), -self._refused_of_unknown

    async def settle(self) -> None:
        """Ask for the last time, when no more faults come. The connection may have broken before."""
        for _ in range(3):
            try:
                await self._ask_what_was_refused()
            except (Lost, DelayServerError) as error:
                self._note(self._client.name, "not told", why=str(error))
                continue
            return

    # -- what becomes of them

    def _some(self, count: int) -> list[Sent]:
        """Those that a delivery or a lookup has named."""
        known = [row for row in self.rows[-60:] if row.state == ACCEPTED and row.receipt]
        return self._chance.sample(known, min(count, len(known)))

    async def _look_up_by_id(self) -> None:
        """The server knows what it did not refuse."""
        known = [row for row in self.rows[-60:] if row.state == ACCEPTED and not row.receipt]
        ids = {row.token: self._model.by_id(row) for row in known}
        rows = [row for row in known if ids[row.token]]
        rows = self._chance.sample(rows, min(10, len(rows)))
        if rows:
            self._note(self._client.name, "looks up", tokens=[row.token for row in rows])
            names = [{"subject": row.subject, "message_id": ids[row.token], "due_ms": row.due_ms} for row in rows]
            await look_up(self._client, self._model, self._clock, rows, {"messages": names})
