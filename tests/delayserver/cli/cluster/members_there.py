"""Servers of members as the command line sees them, without a network."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pytest
from msgspec.structs import replace

from delayserver.protocol.errors import ConnectionLost, DelayServerError
from delayserver.protocol.schema.members import MemberStanding

There = dict[str, MemberStanding | DelayServerError]
"""By address who answers, or the error of the answer. At other addresses is nobody."""


def standing(member: str, shard: int = 0, role: str = "standby") -> MemberStanding:
    return MemberStanding(shard, member, role, 3, "a", 0, 0)


def at(patch: pytest.MonkeyPatch, there: There) -> list[str]:
    """The members are there. Returns the addresses that were asked, which grows."""
    asked: list[str] = []

    class Client:
        """The client of one address."""

        def __init__(self, address: str, **_: Any) -> None:
            self._address = address

        def __enter__(self) -> Client:
            return self

        def __exit__(
            self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
        ) -> None:
            self.close()

        def connect(self) -> None:
            asked.append(self._address)
            if self._address not in there:
                raise ConnectionLost(f"cannot connect to {self._address}")

        def close(self) -> None:
            pass

        def cluster_standing(self) -> MemberStanding:
            self.connect()
            found = there[self._address]
            if isinstance(found, DelayServerError):
                raise found
            return found

        def switch_primary(self, heir: str) -> None:
            """The primary hands over at once."""
            for address, each in there.items():
                if isinstance(each, MemberStanding):
                    role = "primary" if each.member == heir else "standby"
                    there[address] = replace(each, role=role, epoch=each.epoch + 1)

        def status(self) -> dict[str, Any]:
            return {"storage": {"log_position": 70}, "role": "server"}

    patch.setattr("delayserver.client.Client", Client)
    return asked
