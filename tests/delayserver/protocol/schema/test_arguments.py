"""The arguments of a request: what is left out, and what the wire does not take."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from delayserver.client.calls.core import ClientCore, described_call
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import DEAD_LETTERS
from delayserver.protocol.schema.dead_letters import DROP_MAX, DropDeadLetters, DropResult, ListDeadLetters
from delayserver.protocol.schema.structs import arguments_of
from delayserver.protocol.schema.transactions import ListTransactions

NAMES: dict[str, Any] = {"subject": "orders", "group": "shop"}


def test_defaults_are_left_out() -> None:
    assert arguments_of(ListDeadLetters(**NAMES)) == NAMES | {"action": "list"}
    assert arguments_of(ListDeadLetters(**NAMES, bodies=True, after=4)) == NAMES | {
        "action": "list", "bodies": True, "after": 4,
    }  # fmt: skip
    assert arguments_of(DropDeadLetters(**NAMES, positions=[])) == NAMES | {"action": "drop", "positions": []}
    assert arguments_of(ListTransactions()) == {}


FOREIGN = [np.int64(3), np.int64(DROP_MAX), np.array([3, 4]), UUID(int=1), datetime.now(UTC), Decimal(3)]


@pytest.mark.parametrize("value", FOREIGN, ids=[type(each).__name__ + str(place) for place, each in enumerate(FOREIGN)])
@pytest.mark.parametrize("field", ["subject", "max", "positions"])
def test_a_value_of_no_type_of_the_wire_is_refused_before_it_is_sent(field: str, value: Any) -> None:
    given: dict[str, Any] = NAMES | {field: [value] if field == "positions" else value}
    call = described_call(DEAD_LETTERS, DropDeadLetters(**given), DropResult)
    with pytest.raises(InvalidArgument, match=f"dead_letters cannot be sent: .*{type(value).__name__}"):
        ClientCore("test").encode(call)
