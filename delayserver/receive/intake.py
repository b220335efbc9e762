"""Checks `send` requests row by row and turns them into rows or columns to commit. Refuses bad rows with named errors.

The only I/O is that of the desk of names, which syncs a new subject before it returns its code. A bad row gets its own
error and does not fail the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import MessageSettings
from delayserver.config.units import format_duration, format_utc, parse_delay_levels
from delayserver.names.name_desk import NameDesk
from delayserver.protocol.arguments import invalid, shown
from delayserver.protocol.columns import U32, Ragged
from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    InvalidArgument,
    MessageIdInvalid,
    MessageTooLarge,
    PropertiesInvalid,
    TooFar,
    TooOld,
    kept,
)
from delayserver.protocol.message_columns import DueColumn, MessageColumns
from delayserver.protocol.receipts import DERIVED_ID_CHARACTERS, DIGITS, is_derived_id
from delayserver.runtime.runtime import Runtime
from delayserver.state.windows.closed_windows import ClosedWindows
from store.records.batches import MessageBatch
from store.records.column_batch import constant_column
from store.records.id_hash import hash_ids
from store.records.message_rows import Row, order_key_columns
from store.tables.names import SUBJECT, TAG

_MAP_TYPES = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
# Bytes of UTF-8. It is a key, not data, as a message id is.
ORDER_KEY_BYTES_MAX = 255
# Fields that say when a message is due.
_TIMES = frozenset({"due_ms", "delay_ms", "delay_level"})
NO_TIMES = "a published message is due now; to give it a due_ms or a delay, send it"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The error of row `index` of a request."""

    index: int
    error: DelayServerError


class Intake:
    """Checks sends against the settings and the clock."""

    def __init__(
        self,
        settings: MessageSettings,
        server_id: str,
        names: NameDesk,
        oldest_due_ms: Callable[[], int],
        closed: ClosedWindows,
        runtime: Runtime,
    ) -> None:
        """`server_id` has twelve hex digits. Derived ids, of messages without an id of the client, begin with them.

        Due times before `oldest_due_ms()` are refused, and later ones whose window is `closed`."""
        self._settings = settings
        self._levels_ms = parse_delay_levels(settings.delay_levels)
        self._names = names
        # Bound once, since each message calls them.
        self._subject, self._tag = names.subject, names.tag
        self._clock = runtime.clock
        self._oldest_due_ms = oldest_due_ms
        self._closed = closed
        # Due times in `_surely_ms` are accepted without a check during this millisecond, until `closed` changes.
        self._asked_ms = -1
        self._asked_changes = -1
        self._surely_ms = range(0)
        self._server_id = server_id

    # -- rows

    def rows(self, messages: object) -> tuple[list[Row], list[Rejection]]:
        """Checks messages in rows. Returns the accepted ones in order, and the rejections. Raises InvalidArgument and
        BatchTooLarge for the whole request."""
        maps = self._maps(messages)
        now_us = self._clock.now_us()
        now_ms = now_us // 1000
        if now_ms != self._asked_ms or self._closed.changes != self._asked_changes:
            self._asked_ms, self._asked_changes = now_ms, self._closed.changes
            self._surely_ms = range(
                max(self._oldest_due_ms(), self._closed.until_ms), now_ms + self._settings.delay_ms_max
            )
        if len(maps) == 1:  # a client that waits for each message
            try:
                return [self._row(maps[0], now_us)], []
            except DelayServerError as error:
                return [], [Rejection(0, kept(error))]
        self._store_new_names(maps)
        return _each(maps, lambda message: self._row(message, now_us))

    def rows_of_now(
        self, messages: object, require_here: Callable[[str], None] | None
    ) -> tuple[list[Row], list[Rejection]]:
        """`rows` for messages that are due now and give no time. `require_here` raises the error of a subject whose
        messages do not belong here; its name is not stored."""
        maps = self._maps(messages)
        now_ms = self._clock.now_us() // 1000

        def row(message: object) -> Row:
            if type(message) is dict:
                if not _TIMES.isdisjoint(message) and any(message.get(name) is not None for name in _TIMES):
                    raise InvalidArgument(NO_TIMES)
                subject = message.get("subject")
                if require_here is not None and type(subject) is str:
                    require_here(subject)
            return self._row_due(message, now_ms)

        if require_here is None:
            self._store_new_names(maps)
        return _each(maps, row)

    def _maps(self, messages: object) -> list[Any]:
        if type(messages) is not list or not messages:
            raise invalid("messages", "a list of at least one map", messages)
        if len(messages) > self._settings.batch_messages_max:
            raise BatchTooLarge(f"{len(messages)} messages; at most {self._settings.batch_messages_max} in one send")
        return messages

    def _store_new_names(self, messages: list[Any]) -> None:
        if len(messages) > 1:
            maps = [message for message in messages if type(message) is dict]
            self._names.store_new(SUBJECT, [message.get("subject") for message in maps])
            tags = {message["tag"] for message in maps if type(message.get("tag")) is str}
            if tags:
                self._names.store_new(TAG, tags)

    def _row(self, message: object, now_us: int) -> Row:
        if type(message) is not dict:
            raise _refused_row(message)
        get = message.get
        due_ms, delay_ms = get("due_ms"), get("delay_ms")
        if "delay_level" in message:
            delay_ms = self._delay_of(message["delay_level"], delay_ms)
        if type(due_ms) is not int or delay_ms is not None or due_ms not in self._surely_ms:
            due_ms = self._due(due_ms, delay_ms, now_us)
        return self._row_due(message, due_ms)

    def _row_due(self, message: object, due_ms: int) -> Row:
        if type(message) is not dict:
            raise _refused_row(message)
        get = message.get
        body = get("body")
        if type(body) is not bytes or len(body) > self._settings.body_bytes_max:
            body = self.body(body)
        expires_ms = get("expires_ms")
        expires_ms = 0 if expires_ms is None else self.expires(expires_ms)
        message_id, properties = get("message_id"), get("properties")
        tag, order_key = get("tag"), get("order_key")
        return (
            due_ms,
            self._subject(get("subject")),
            expires_ms,
            b"" if message_id is None else self.own_id(message_id),
            b"" if properties is None else self.properties(properties),
            body,
            0 if tag is None else self._tag(tag),
            b"" if order_key is None else self.order_key(order_key),
        )

    def body(self, body: object) -> bytes:
        """The bytes of a body. Raises InvalidArgument, MessageTooLarge."""
        data = body.encode() if type(body) is str else body
        if type(data) is not bytes:
            raise invalid("body", "bytes or text", body)
        if len(data) > self._settings.body_bytes_max:
            raise MessageTooLarge(f"body has {len(data)} bytes; at most {self._settings.body_bytes_max}")
        return data

    def expires(self, expires_ms: object) -> int:
        """Checks an expiry time in ms, 0 for never. Raises InvalidArgument."""
        if type(expires_ms) is not int or not 0 <= expires_ms < 1 << 62:
            raise invalid("expires_ms", "a time in milliseconds since 1970, or 0 for never", expires_ms)
        return expires_ms

    def due(self, due_ms: object, delay_ms: object) -> int:
        """Resolves and checks the due time of one message. Raises InvalidArgument, TooOld, TooFar."""
        return self._due(due_ms, delay_ms, self._clock.now_us())

    def _due(self, due_ms: object, delay_ms: object, now_us: int) -> int:
        if due_ms is None:
            if delay_ms is None:
                raise InvalidArgument("due_ms and delay_ms are missing; give one of them")
            if type(delay_ms) is not int or delay_ms < 0:
                raise invalid("delay_ms", "an integer of milliseconds, 0 or more", delay_ms)
            if delay_ms > self._settings.delay_ms_max:
                raise _delay_too_far(delay_ms, self._settings.delay_ms_max)
            due: int = (now_us + 999) // 1000 + delay_ms
        elif type(due_ms) is not int:
            raise invalid("due_ms", "an integer of milliseconds since 1970", due_ms)
        elif delay_ms is not None:
            raise InvalidArgument("give either due_ms or delay_ms, not both")
        else:
            due = due_ms
        oldest_ms = self._oldest_due_ms()
        if due < oldest_ms:
            raise _too_old(due, _text(oldest_ms))
        if due < self._closed.until_ms and self._closed.holds(due):
            raise _retired(due, *self._closed.window(due))
        latest_ms = (now_us + 999) // 1000 + self._settings.delay_ms_max
        if due > latest_ms:
            raise _too_far(due, _text(latest_ms), self._settings.delay_ms_max)
        return due

    def check_due_again(self, due_ms: NDArray[np.int64]) -> dict[int, DelayServerError]:
        """Checks n accepted due times again after a request has waited. Returns the errors by place."""
        refused: dict[int, DelayServerError] = {}
        self._check_due(due_ms, self._clock.now_us(), refused)
        return refused

    def message_id(self, message_id: object) -> bytes:
        """The bytes of a client's id; empty if none is given. Raises MessageIdInvalid."""
        if message_id is None:
            return b""
        if type(message_id) is not str or not message_id:
            raise MessageIdInvalid(f"a message_id is a text of at least one character, not {shown(message_id)}")
        data = message_id.encode()
        if len(data) > self._settings.message_id_bytes_max:
            raise MessageIdInvalid(f"a message_id has at most {self._settings.message_id_bytes_max} bytes of UTF-8")
        return data

    def order_key(self, order_key: object) -> bytes:
        """The bytes of an order key. Raises InvalidArgument."""
        if type(order_key) is not str or not order_key:
            raise InvalidArgument(f"an order_key is a text of at least one character, not {shown(order_key)}")
        data = order_key.encode()
        if len(data) > ORDER_KEY_BYTES_MAX:
            raise InvalidArgument(f"an order_key has at most {ORDER_KEY_BYTES_MAX} bytes of UTF-8")
        return data

    def own_id(self, message_id: object) -> bytes:
        """`message_id` for a send, which must not have the form of a derived id. Raises MessageIdInvalid."""
        data = self.message_id(message_id)
        if len(data) == DERIVED_ID_CHARACTERS and is_derived_id(data, self._server_id):
            raise MessageIdInvalid("message_ids of this form are this server's, for messages that are sent without one")
        return data

    def properties(self, properties: object) -> bytes:
        """The msgpack map of the properties; empty if there are none. Raises PropertiesInvalid."""
        if properties is None or properties == {}:
            return b""
        if type(properties) is not dict or not all(type(part) is str for item in properties.items() for part in item):
            raise PropertiesInvalid("properties is a map from text to text")
        data: bytes = msgpack.packb(properties)
        if len(data) > self._settings.properties_bytes_max:
            raise PropertiesInvalid(f"properties have at most {self._settings.properties_bytes_max} bytes as msgpack")
        return data

    # -- columns

    def columns(
        self, messages: MessageColumns, require_here: Callable[[str], None] | None = None
    ) -> tuple[MessageBatch | None, list[Rejection]]:
        """Checks messages in columns. Returns the accepted ones, None if no row is left, and the rejections. Raises
        named errors for the whole request. `require_here`: see `rows_of_now`."""
        bodies = messages.bodies
        bad: dict[int, DelayServerError] = {}
        if messages.due is None:
            due_ms = constant_column(self._clock.now_us() // 1000, len(bodies.lengths), np.int64)
        else:
            due_ms = self.due_column(messages.due, bad)
        maximum = self._settings.body_bytes_max
        _mark(
            bad,
            bodies.lengths > maximum,
            lambda i: MessageTooLarge(f"body has {bodies.lengths[i]} bytes; at most {maximum}"),
        )
        count = len(due_ms)
        columns: dict[str, Any] = {
            "due_ms": due_ms,
            "bodies": bodies.blob,
            "bodies_length": bodies.lengths,
            "subject": self._subject_column(messages, count, bad, require_here),
        }
        # Ids are checked strictly: without its id, a repeated send would silently become a second message.
        if messages.ids is not None:
            columns |= self._id_columns(messages.ids, bad)
        if messages.properties is not None:
            columns |= self._properties_columns(messages.properties, bad)
        if messages.expires_ms is not None:
            _mark(bad, messages.expires_ms < 0, lambda _: InvalidArgument("expires_ms must be 0 or more"))
            columns["expires_ms"] = messages.expires_ms
        if messages.tags:
            columns["tag"] = self._tag_column(messages, count, bad)
        if messages.order_keys is not None:
            columns |= self._order_key_columns(messages.order_keys, bad)
        batch = MessageBatch.filled(count, **columns)
        if not bad:
            return batch, []
        rejections = [Rejection(index, bad[index]) for index in sorted(bad)]
        keep = np.ones(count, dtype=bool)
        keep[list(bad)] = False
        rest = np.flatnonzero(keep)
        return (batch.take(rest) if len(rest) else None), rejections

    def _delay_of(self, level: object, delay_ms: object) -> object:
        """The delay of a level. Without a level (nil) it is `delay_ms`. Raises InvalidArgument."""
        if level is None:
            return delay_ms
        if delay_ms is not None:
            raise InvalidArgument("give either delay_ms or delay_level, not both")
        if type(level) is not int or not 1 <= level <= len(self._levels_ms):
            raise invalid("delay_level", f"an integer from 1 to {len(self._levels_ms)}", level)
        return self._levels_ms[level - 1]

    def due_column(self, due: DueColumn, bad: dict[int, DelayServerError]) -> NDArray[np.int64]:
        """The due times i64[n] of a column of due times or delays. Errors of refused rows go to `bad`."""
        now_us = self._clock.now_us()
        column = due.values
        if due.are_delays:
            delays, maximum = due.values, self._settings.delay_ms_max
            if due.are_levels:
                levels, count = delays, len(self._levels_ms)
                wrong = (levels < 1) | (levels > count)
                _mark(bad, wrong, lambda i: invalid("delay_level", f"an integer from 1 to {count}", int(levels[i])))
                delays = np.array(self._levels_ms, np.int64)[np.clip(levels, 1, count) - 1]
            _mark(bad, delays < 0, lambda i: InvalidArgument(f"delay_ms is {delays[i]}; it must be 0 or more"))
            _mark(bad, delays > maximum, lambda i: _delay_too_far(int(delays[i]), maximum))
            # Bounded against overflow; delays above the maximum are refused already.
            column = np.minimum(delays, maximum) + (now_us + 999) // 1000
        self._check_due(column, now_us, bad)
        return column

    def _check_due(self, column: NDArray[np.int64], now_us: int, bad: dict[int, DelayServerError]) -> None:
        oldest_ms = self._oldest_due_ms()
        latest_ms = (now_us + 999) // 1000 + self._settings.delay_ms_max
        first_open_ms = max(oldest_ms, self._closed.until_ms)
        if int(column.min(initial=latest_ms)) >= first_open_ms and int(column.max(initial=first_open_ms)) <= latest_ms:
            return
        old, far = column < oldest_ms, column > latest_ms
        if old.any():
            oldest = _text(oldest_ms)
            _mark(bad, old, lambda i: _too_old(int(column[i]), oldest))
        closed = self._closed.held(column)
        if closed.any():
            _mark(bad, closed, lambda i: _retired(int(column[i]), *self._closed.window(int(column[i]))))
        if far.any():
            latest, maximum_ms = _text(latest_ms), self._settings.delay_ms_max
            _mark(bad, far, lambda i: _too_far(int(column[i]), latest, maximum_ms))

    def _subject_column(
        self,
        messages: MessageColumns,
        count: int,
        bad: dict[int, DelayServerError],
        require_here: Callable[[str], None] | None,
    ) -> NDArray[np.uint32]:
        def code(subject: object) -> int:
            if require_here is not None and type(subject) is str:
                require_here(subject)
            return self._names.subject(subject)

        subjects, index = messages.subjects, messages.subject_index
        if index is None:
            return constant_column(code(subjects[0]), count, U32)
        if require_here is None:
            self._names.store_new(SUBJECT, subjects)
        codes, errors = _codes(subjects, code)
        column: NDArray[np.uint32] = codes[index]
        if errors:
            _mark(bad, column == 0, lambda i: errors[int(index[i])])
        return column

    def _tag_column(self, messages: MessageColumns, count: int, bad: dict[int, DelayServerError]) -> NDArray[np.uint32]:
        tags, index = messages.tags, messages.tag_index
        if index is None:
            return constant_column(self._names.tag(tags[0]), count, U32)
        self._names.store_new(TAG, tags)
        codes, errors = _codes(tags, self._names.tag)
        column: NDArray[np.uint32] = np.concatenate([np.zeros(1, np.uint32), codes])[index]
        if errors:
            _mark(bad, (column == 0) & (index != 0), lambda i: errors[int(index[i]) - 1])
        return column

    def _order_key_columns(self, keys: Ragged, bad: dict[int, DelayServerError]) -> dict[str, Any]:
        if not len(keys.blob):
            return {}
        maximum = ORDER_KEY_BYTES_MAX
        _mark(bad, keys.lengths > maximum, lambda _: InvalidArgument(f"an order_key has at most {maximum} bytes"))
        _require_text(keys, "order_keys", InvalidArgument)
        return order_key_columns(*_within(keys, maximum))

    def _id_columns(self, ids: Ragged, bad: dict[int, DelayServerError]) -> dict[str, Any]:
        if not len(ids.blob):
            return {}
        maximum = self._settings.message_id_bytes_max
        _mark(bad, ids.lengths > maximum, lambda _: MessageIdInvalid(f"a message_id has at most {maximum} bytes"))
        _require_text(ids, "message_ids", MessageIdInvalid)
        likely = np.flatnonzero(ids.lengths == DERIVED_ID_CHARACTERS)
        likely = likely[np.frombuffer(ids.blob, np.uint8)[ids.offsets[likely] + DIGITS] == ord("-")]
        for row in likely.tolist():
            if is_derived_id(bytes(ids.row(row)), self._server_id):
                bad.setdefault(row, MessageIdInvalid("ids of this form are the server's, for messages without one"))
        blob, lengths = _within(ids, maximum)
        return {"ids": blob, "ids_length": lengths, "id_hash": hash_ids(blob, lengths)}

    def _properties_columns(self, properties: Ragged, bad: dict[int, DelayServerError]) -> dict[str, Any]:
        maximum = self._settings.properties_bytes_max
        _mark(bad, properties.lengths > maximum, lambda _: PropertiesInvalid(f"at most {maximum} bytes of properties"))
        # The server does not read properties, but consumers read them as a map, so each is checked.
        for index in np.flatnonzero(properties.lengths).tolist():
            try:
                value = msgpack.unpackb(properties.row(index), max_ext_len=0)
                valid = type(value) is dict and all(type(v) is str for kv in value.items() for v in kv)
            except (ValueError, msgpack.UnpackException):
                valid = False
            if not valid:
                bad.setdefault(index, PropertiesInvalid("properties of a row are one msgpack map from text to text"))
        return {"properties": properties.blob, "properties_length": properties.lengths}


def _within(texts: Ragged, bytes_max: int) -> tuple[bytes | memoryview, NDArray[np.uint32]]:
    """The texts end to end, and their lengths: empty ones in place of those that are too long, whose rows are refused. A
    hash takes as many steps as the longest one has words, for all rows."""
    too_long = texts.lengths > bytes_max
    if not too_long.any():
        return texts.blob, texts.lengths
    kept = [b"" if wrong else text for text, wrong in zip(texts.rows(), too_long.tolist(), strict=True)]
    return b"".join(kept), np.where(too_long, np.uint32(0), texts.lengths)


def _refused_row(message: object) -> DelayServerError:
    """The error of a row that is no map. The front puts its refusal in place of a message that it does not let through."""
    return message if isinstance(message, DelayServerError) else InvalidArgument("a message must be a map")


def _each(messages: list[Any], row: Callable[[object], Row]) -> tuple[list[Row], list[Rejection]]:
    """The row of each message, or its rejection."""
    rows: list[Row] = []
    rejections: list[Rejection] = []
    for message in messages:
        try:
            rows.append(row(message))
        except DelayServerError as error:
            rejections.append(Rejection(len(rows) + len(rejections), kept(error)))
    return rows, rejections


def _codes(names: list[Any], code: Callable[[object], int]) -> tuple[NDArray[np.uint32], dict[int, DelayServerError]]:
    """The code of each name, u32[n], 0 for a refused one; and the errors by place."""
    codes = np.zeros(len(names), dtype=np.uint32)
    errors: dict[int, DelayServerError] = {}
    for place, name in enumerate(names):
        try:
            codes[place] = code(name)
        except DelayServerError as error:
            errors[place] = kept(error)
    return codes, errors


def _require_text(texts: Ragged, what: str, refusal: type[DelayServerError]) -> None:
    """Raises `refusal` unless each of the texts is UTF-8."""
    try:
        bytes(texts.blob).decode()
    except UnicodeDecodeError as error:
        raise refusal(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error
    # The whole blob is UTF-8. A row is valid if no row starts inside a character.
    firsts = np.frombuffer(texts.blob, np.uint8)[texts.offsets[:-1][texts.lengths > 0]]
    if bool(((firsts & 0xC0) == 0x80).any()):
        raise refusal(f"{what} is cut inside a UTF-8 character")


def _text(instant_ms: int) -> str:
    return f"{format_utc(instant_ms)} ({instant_ms})"


def _too_old(due_ms: int, oldest: str) -> TooOld:
    return TooOld(f"due_ms {due_ms} is {format_utc(due_ms)}, before the oldest window kept, which starts at {oldest}")


def _retired(due_ms: int, start_ms: int, end_ms: int) -> TooOld:
    return TooOld(
        f"due_ms {due_ms} is {format_utc(due_ms)}, and the window from {_text(start_ms)} to {_text(end_ms)} is retired: it "
        "was delivered, by a clock that was ahead; give a due time outside of it"
    )


def _too_far(due_ms: int, latest: str, delay_ms_max: int) -> TooFar:
    return TooFar(
        f"due_ms {due_ms} is {format_utc(due_ms)}, beyond the maximum delay of {format_duration(delay_ms_max)}; the latest "
        f"due time now is {latest}"
    )


def _delay_too_far(delay_ms: int, delay_ms_max: int) -> TooFar:
    return TooFar(f"delay_ms is {delay_ms}; the maximum delay is {delay_ms_max} ({format_duration(delay_ms_max)})")


def _mark(bad: dict[int, DelayServerError], mask: NDArray[np.bool_], error: Callable[[int], DelayServerError]) -> None:
    """Stores the error of each masked row that has none yet. Costs one reduction if the mask is empty."""
    if mask.any():
        for index in np.flatnonzero(mask).tolist():
            if index not in bad:
                bad[index] = error(index)
