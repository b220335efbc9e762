"""Refuses messages that belong to another shard of the cluster, before they are numbered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from delayserver.protocol.errors import WrongShard
from delayserver.protocol.message_columns import MessageColumns
from delayserver.receive.intake import Rejection
from delayserver.state.shard.cluster_map import ClusterMap
from store.records.batches import MessageBatch
from store.records.message_rows import Row

Refusal = Callable[[str, bytes, bytes], WrongShard | None]


class ChecksMessages(Protocol):
    """What a client's messages pass: an `Intake`, in a member of a cluster a `PlacedIntake`."""

    def rows(self, messages: object) -> tuple[list[Row], list[Rejection]]:
        """See `Intake.rows`."""

    def rows_of_now(
        self, messages: object, require_here: Callable[[str], None] | None
    ) -> tuple[list[Row], list[Rejection]]:
        """See `Intake.rows_of_now`."""

    def columns(
        self, messages: MessageColumns, require_here: Callable[[str], None] | None = None
    ) -> tuple[MessageBatch | None, list[Rejection]]:
        """See `Intake.columns`."""


class PlacedIntake:
    """An intake that takes the messages of its own shard alone. Rows of others are refused as WrongShard."""

    def __init__(self, intake: ChecksMessages, shards: ClusterMap) -> None:
        self._intake = intake
        self._shards = shards

    def rows(self, messages: object) -> tuple[list[Row], list[Rejection]]:
        """See `Intake.rows`."""
        return self._intake.rows(self._of_this_shard(messages))

    def rows_of_now(
        self, messages: object, require_here: Callable[[str], None] | None
    ) -> tuple[list[Row], list[Rejection]]:
        """See `Intake.rows_of_now`."""
        return self._intake.rows_of_now(self._of_this_shard(messages), require_here)

    def columns(
        self, messages: MessageColumns, require_here: Callable[[str], None] | None = None
    ) -> tuple[MessageBatch | None, list[Rejection]]:
        """See `Intake.columns`."""
        batch, rejections = self._intake.columns(messages, require_here)
        refusal = self._shards.refusals
        if refusal is None or batch is None:
            return batch, rejections
        taken = np.delete(np.arange(len(messages.bodies.lengths)), [each.index for each in rejections])
        kept, wrong = _places(messages, taken.tolist(), refusal)
        if not wrong:
            return batch, rejections
        rejections = sorted([*rejections, *wrong], key=lambda each: each.index)
        return (batch.take(np.array(kept)) if kept else None), rejections

    def _of_this_shard(self, messages: object) -> object:
        """The messages, with a refusal in the place of each that belongs elsewhere."""
        refusal = self._shards.refusals
        if refusal is None or type(messages) is not list:
            return messages
        return [_or_refusal(message, refusal) for message in messages]


def _or_refusal(message: Any, refusal: Refusal) -> Any:
    if type(message) is not dict:
        return message
    subject, order_key, message_id = message.get("subject"), message.get("order_key"), message.get("message_id")
    order_key, message_id = order_key or "", message_id or ""
    if not (type(subject) is type(order_key) is type(message_id) is str):  # the intake says what is wrong with it
        return message
    return refusal(subject, order_key.encode(), message_id.encode()) or message


def _places(messages: MessageColumns, taken: list[int], refusal: Refusal) -> tuple[list[int], list[Rejection]]:
    """Of the rows that were taken the places, among these, of those that belong here; and the refusals of the others. Two
    checksums a row: only a cluster of several shards pays for them."""
    none = [b""] * len(messages.bodies.lengths)
    ids = none if messages.ids is None else messages.ids.rows()
    keys = none if messages.order_keys is None else messages.order_keys.rows()
    index = messages.subject_index
    subjects = messages.subjects * len(none) if index is None else [messages.subjects[each] for each in index.tolist()]
    kept, wrong = [], []
    for place, row in enumerate(taken):
        refused = refusal(subjects[row], keys[row], ids[row])
        if refused is None:
            kept.append(place)
        else:
            wrong.append(Rejection(row, refused))
    return kept, wrong
