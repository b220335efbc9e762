"""A request about many messages as one for each shard, and the replies of the shards as one reply. No I/O.

It works on the arguments and results as the wire has them. So the calls of one server know nothing of shards.
A row of a joined reply may have an error itself where the wire has the name of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.client.calls.core import in_doubt
from delayserver.client.calls.slot_owners import SlotOwners
from delayserver.client.values.messages import RowPlaces
from delayserver.protocol.columns import I64, U32, Ragged, pack_column, pack_ragged, unpack_column, unpack_ragged
from delayserver.protocol.errors import DelayServerError, WrongShard, error_from_map, make_error

Rows = list[int]
"""Indexes of rows of the request."""

_RAGGED: Final = {
    "bodies": "body_length",
    "message_ids": "message_id_length",
    "properties": "properties_length",
    "order_keys": "order_key_length",
}
_COLUMNS: Final[dict[str, np.dtype[Any]]] = {"due_ms": I64, "expires_ms": I64, "subject_index": U32, "tag_index": U32}
_LISTS: Final = ("messages", "receipts", "items")


class ShardRows(ABC):
    """The rows of one request, and what the shards answered of them."""

    @abstractmethod
    def owners(self, map: SlotOwners) -> list[int | None]:
        """The shard of each row by the map. None: any open one."""

    @abstractmethod
    def take(self, rows: Rows) -> dict[str, Any]:
        """The arguments of a request with these rows alone."""

    @abstractmethod
    def answer(self, rows: Rows, result: dict[str, Any], server_id: str) -> None:
        """A shard has answered these rows. A later answer takes the place of an earlier one."""

    @abstractmethod
    def fail(self, rows: Rows, error: DelayServerError) -> None:
        """A shard has not carried out these rows, or nobody knows."""

    @abstractmethod
    def doubt(self, result: dict[str, Any], unknown: DelayServerError) -> dict[str, Any]:
        """The result of a shard whose earlier attempt ended `unknown`: a refusal may hide that it was carried out."""

    @abstractmethod
    def wrong_rows(self) -> dict[int, WrongShard]:
        """The rows whose last answer was `wrong_shard`."""

    @abstractmethod
    def error(self) -> DelayServerError | None:
        """The error of `fail` if it was the answer of all rows."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """One reply for all rows."""


class RowParts(ShardRows):
    """A request in rows: messages, receipts or items."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._name = next(name for name in _LISTS if name in arguments)
        self._items: list[Any] = arguments[self._name]
        self._results: list[Any] = [None] * len(self._items)
        self._elsewhere: set[int] = set()

    def owners(self, map: SlotOwners) -> list[int | None]:
        return [_owner_of(item, map) for item in self._items]

    def take(self, rows: Rows) -> dict[str, Any]:
        return self._arguments | {self._name: [self._items[row] for row in rows]}

    def answer(self, rows: Rows, result: dict[str, Any], server_id: str) -> None:
        for row, answer in zip(rows, result["results"], strict=True):
            self._put(row, answer)

    def fail(self, rows: Rows, error: DelayServerError) -> None:
        for row in rows:
            self._put(row, {"error": error})

    def _put(self, row: int, answer: Any) -> None:
        if row not in self._elsewhere or _worth(answer) > _worth(self._results[row]):
            self._results[row] = answer

    def doubt(self, result: dict[str, Any], unknown: DelayServerError) -> dict[str, Any]:
        rows = [
            {"error": in_doubt(error_from_map(row), unknown)} if "error" in row else row for row in result["results"]
        ]
        return result | {"results": rows}

    def wrong_rows(self) -> dict[int, WrongShard]:
        found = {}
        for row, answer in enumerate(self._results):
            if "error" in answer and isinstance(error := error_from_map(answer), WrongShard):
                found[row] = error
        return found

    def error(self) -> DelayServerError | None:
        errors = [answer.get("error") for answer in self._results]
        first = errors[0]
        return first if all(isinstance(each, DelayServerError) for each in errors) else None

    def ask_elsewhere(self) -> Rows:
        """The rows that name a message by its id, and that the asked shard does not know. It may have an order key, and so
        be at another shard. From now on several shards answer such a row, and the answer that says most is kept.
        """
        found = [
            row
            for row, answer in enumerate(self._results)
            if answer.get("outcome") == "unknown"
            and isinstance(self._items[row], dict)
            and "message_id" in self._items[row]
        ]
        self._elsewhere.update(found)
        return found

    def result(self) -> dict[str, Any]:
        return {"results": self._results}


class ColumnParts(ShardRows):
    """A request in columns: `send`, `prepare` or `publish`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._count: int = arguments["count"]
        self._columns: dict[str, NDArray[Any]] = {
            name: unpack_column(arguments[name], self._count, dtype, name)
            for name, dtype in _COLUMNS.items()
            if name in arguments
        }
        self._ragged: dict[str, Ragged] = {
            name: unpack_ragged(arguments[name], arguments[lengths], self._count, name, lengths)
            for name, lengths in _RAGGED.items()
            if name in arguments
        }
        self._errors: dict[int, DelayServerError] = {}
        self._failed: dict[int, DelayServerError] = {}
        self._accepted: list[_Accepted] = []

    def owners(self, map: SlotOwners) -> list[int | None]:
        if not {"message_ids", "order_keys"} & self._ragged.keys():
            return [None] * self._count
        none = repeat(b"", self._count)
        keys, ids = (self._ragged[n].rows() if n in self._ragged else none for n in ("order_keys", "message_ids"))
        subjects = self._arguments.get("subjects") or [self._arguments["subject"]]
        index = self._columns["subject_index"].tolist() if "subject_index" in self._columns else repeat(0, self._count)
        return map.owners(subjects, index, keys, ids)

    def take(self, rows: Rows) -> dict[str, Any]:
        if len(rows) == self._count:
            return self._arguments
        taken = self._arguments | {"count": len(rows)}
        for name, column in self._columns.items():
            taken[name] = pack_column(column[rows], _COLUMNS[name])
        for name, ragged in self._ragged.items():
            taken[name], taken[_RAGGED[name]] = pack_ragged([ragged.row(row) for row in rows])
        return taken

    def answer(self, rows: Rows, result: dict[str, Any], server_id: str) -> None:
        for row in rows:
            self._errors.pop(row, None)
        rejected = set()
        for index, name, message, retry_after_ms, *_ in result["rejected"]:
            rejected.add(index)
            self._errors[rows[index]] = (
                name if isinstance(name, DelayServerError) else make_error(name, message, retry_after_ms)
            )
        taken = [row for index, row in enumerate(rows) if index not in rejected]
        if taken:
            self._accepted.append(_Accepted(server_id, taken, result))

    def fail(self, rows: Rows, error: DelayServerError) -> None:
        self._errors |= dict.fromkeys(rows, error)
        self._failed |= dict.fromkeys(rows, error)

    def doubt(self, result: dict[str, Any], unknown: DelayServerError) -> dict[str, Any]:
        rows = [
            [index, in_doubt(make_error(name, message, retry_after_ms), unknown), message, retry_after_ms]
            for index, name, message, retry_after_ms, *_ in result["rejected"]
        ]
        return result | {"rejected": rows}

    def wrong_rows(self) -> dict[int, WrongShard]:
        return {row: error for row, error in self._errors.items() if isinstance(error, WrongShard)}

    def error(self) -> DelayServerError | None:
        return next(iter(self._failed.values())) if len(self._failed) == self._count else None

    def result(self) -> dict[str, Any]:
        rejected = [[row, error, error.message, error.retry_after_ms] for row, error in sorted(self._errors.items())]
        accepted = np.array([row for part in self._accepted for row in part.rows], I64)
        order = np.argsort(accepted)
        place_of = np.empty(len(order), I64)
        place_of[order] = np.arange(len(order))
        sequence = np.concatenate([part.sequence for part in self._accepted] or [np.empty(0, I64)])[order]
        index = np.repeat(np.arange(len(self._accepted)), [len(part.rows) for part in self._accepted])[order]
        joined: dict[str, Any] = {"accepted": len(accepted), "first_sequence": -1, "rejected": rejected}
        for name in ("due_ms", "position"):
            if all(name in part.result for part in self._accepted):
                joined[name] = pack_column(
                    np.concatenate([part.column(name) for part in self._accepted] or [np.empty(0, I64)])[order], I64
                )
        duplicates: list[list[Any]] | None = [] if self._accepted else None
        places: list[int] = []
        begin = 0
        for part in self._accepted:
            told = part.result.get("duplicates")
            if told is None:
                duplicates = None
            elif duplicates is not None:
                duplicates += told
                places += [int(place_of[begin + row[0] - part.first]) for row in told]
            begin += len(part.rows)
        if duplicates is not None:
            joined["duplicates"] = duplicates
        servers = [part.server_id for part in self._accepted]
        joined["placed"] = RowPlaces(servers, index.astype(U32), sequence, places)
        return joined


@dataclass(frozen=True, slots=True)
class _Accepted:
    """The rows that one shard has accepted, and its reply."""

    server_id: str
    rows: Rows
    result: dict[str, Any]

    @property
    def first(self) -> int:
        return int(self.result["first_sequence"])

    @property
    def sequence(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + len(self.rows), dtype=I64)

    def column(self, name: str) -> NDArray[Any]:
        return unpack_column(self.result[name], len(self.rows), I64, name)


def parts_of(arguments: dict[str, Any]) -> RowParts | ColumnParts:
    """The rows of a request, in either form."""
    return ColumnParts(arguments) if "count" in arguments else RowParts(arguments)


def by_shard(owners: Sequence[int | None], rows: Rows, free: int) -> dict[int, Rows]:
    """The rows of each shard. Rows of any shard go to `free`."""
    found: dict[int, Rows] = {}
    for row in rows:
        owner = owners[row]
        found.setdefault(free if owner is None else owner, []).append(row)
    return found


def _worth(answer: Any) -> int:
    """An error outweighs `unknown`: the shard that failed may have the message. Any other answer outweighs both."""
    return 1 if "error" in answer else 0 if answer.get("outcome") == "unknown" else 2


def _owner_of(item: Any, map: SlotOwners) -> int | None:
    if not isinstance(item, dict):
        return map.of_receipt(item)
    if item.get("receipt") is not None:
        return map.of_receipt(item["receipt"])
    return map.owner(item["subject"], (item.get("order_key") or "").encode(), (item.get("message_id") or "").encode())
