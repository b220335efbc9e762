"""The operation `redispatch`: messages that have an outcome, delivered once more."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS

_TIME_MAX: Final = (1 << 62) - 1


class RedispatchSlice(Request, frozen=True):
    """One slice of the messages that are due from ``from_ms`` to before ``to_ms``. Raises InvalidArgument."""

    from_ms: Annotated[
        int, says("Messages due from this time on, in milliseconds since 1970.", DUE_MS, ge=0, le=_TIME_MAX)
    ]
    to_ms: Annotated[
        int, says("Messages due before this time. It is larger than `from_ms`.", DUE_MS, ge=0, le=_TIME_MAX)
    ]
    subject: Annotated[str, says("Only this one. One that was never seen is `invalid_argument`.", "orders")] | None = (
        None
    )
    # Cancelled and suppressed messages are never delivered.
    outcomes: Annotated[
        tuple[Literal["dead_lettered", "delivered", "expired"], ...],
        says(
            "What became of the messages: some of `delivered` (the default), `expired`, `dead_lettered`.",
            ["delivered"],
            expected="a list of some of dead_lettered, delivered, expired",
            min_length=1,
        ),
    ] = ("delivered",)
    dry_run: Annotated[bool, says("True: only count.", True)] = False
    after: (
        Annotated[
            tuple[int, int, int],
            says("The `next` of the reply before.", [DUE_MS, 0, 46], expected="the `next` of the reply before"),
        ]
        | None
    ) = None

    def __post_init__(self) -> None:
        if self.from_ms >= self.to_ms:
            raise InvalidArgument(f"from_ms {self.from_ms} must lie before to_ms {self.to_ms}")


class DamagedPlace(Reply, frozen=True):
    """A place that the server could not read."""

    file: Annotated[str, says("The file, by its path in the data directory.", "schedule_log/0001a3185c5000")]
    offset: Annotated[int, says("Where in the file, in bytes.", 4_096)]
    detail: Annotated[str, says("What is wrong there.", "a record's checksum is wrong")]


class Redispatched(Reply, frozen=True):
    """How many messages of a slice come again, and what the server passed over."""

    messages: Annotated[int, says("Messages of this slice that come again, or would.", 3)]
    next: Annotated[tuple[int, int, int], says("The next slice. The last one has none.", [DUE_MS, 0, 46])] | None
    unreadable: Annotated[int, says("Messages left out, because their bytes or outcomes cannot be read.", 0)]
    damages: Annotated[list[DamagedPlace], says("The damage that the server passed over, at most 16 places.")]
