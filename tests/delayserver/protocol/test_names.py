"""Errors, outcomes, operations and limits: the names of the wire are what the protocol says, and all are documented."""

from __future__ import annotations

import pytest

from delayserver.protocol.errors import (
    ERRORS,
    DelayServerError,
    InvalidArgument,
    Unavailable,
    error_from_map,
    error_to_map,
)
from delayserver.protocol.limits import Limits
from delayserver.protocol.operation_names import OPERATIONS
from delayserver.protocol.outcomes import OUTCOME_LABELS, OUTCOMES_BY_LABEL, DeliverOutcome, Outcome
from delayserver.protocol.schema.structs import read_reply
from ops.docs.wire_tables import MADE_BY_CLIENTS
from tests.delayserver.protocol import vectors

PROTOCOL = vectors.told()


def test_every_error_name_belongs_to_one_class_with_a_docstring() -> None:
    for name, error in ERRORS.items():
        assert error.error == name
        assert error.__doc__
        assert "error" in error.__dict__ or name == "internal_error"


def test_every_error_survives_the_wire() -> None:
    for name, kind in ERRORS.items():
        error = error_from_map(error_to_map(kind("text", retry_after_ms=5)))
        assert type(error) is kind
        assert str(error) == f"{name}: text"
        assert error.retry_after_ms == 5


def test_an_error_map_of_nonsense_is_still_an_error() -> None:
    nonsense: list[dict[str, object]] = [{}, {"error": 5}, {"error": [], "message": None, "retry_after_ms": "soon"}]
    for fields in nonsense:
        error = error_from_map(fields)
        assert isinstance(error, DelayServerError)
        assert error.retry_after_ms is None


def test_exactly_the_errors_without_fault_of_the_caller_may_be_retried() -> None:
    for kind in ERRORS.values():
        assert kind.retriable == issubclass(kind, Unavailable)


def test_outcome_codes_never_change() -> None:
    assert OUTCOME_LABELS == (
        "unknown",
        "pending",
        "in_flight",
        "retrying",
        "delivered",
        "cancelled",
        "expired",
        "deduplicated",
        "dead_lettered",
        "retired",
        "already_cancelled",
        "too_late",
        "rolled_back",
        "prepared",
        "committed",
    )
    assert all(OUTCOMES_BY_LABEL[outcome.label] is outcome for outcome in Outcome)
    assert [outcome.value for outcome in DeliverOutcome] == [1, 2, 3]


def test_limits_of_a_reply_are_read_back_and_newer_ones_are_ignored() -> None:
    limits = Limits(frame_bytes_max=12345)
    assert read_reply({**limits.to_map(), "newer_bound": 7}, Limits) == limits
    for bad in (0, -1, True, "5", None):
        with pytest.raises(InvalidArgument, match="frame_bytes_max"):
            Limits(frame_bytes_max=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [*sorted(set(ERRORS) - MADE_BY_CLIENTS), *sorted(OPERATIONS), *OUTCOME_LABELS, *Limits().to_map()]
)
def test_the_protocol_document_explains_every_name(name: str) -> None:
    assert f"`{name}`" in PROTOCOL
