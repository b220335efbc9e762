"""The public client in types: one rule for times, and a name for each thing that it returns."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import numpy as np
import pytest

import delayserver.client
from delayserver.client import (
    AsyncBatcher,
    AsyncClient,
    AsyncTransaction,
    Batcher,
    Client,
    Consumer,
    Message,
    Retry,
    Transaction,
)
from delayserver.client.calls.send_calls import columns_given, resolve_due_column
from delayserver.client.values.timing import ServerClock, resolve_due_ms
from delayserver.protocol.errors import InvalidArgument
from tests.delayserver.client.both import Connect
from tests.delayserver.client.fake_server import FakeServer

PUBLIC = (AsyncBatcher, AsyncClient, AsyncTransaction, Batcher, Client, Consumer, Message, Retry, Transaction)

# Numbers without a unit in their names, which are deprecated. CHANGELOG names their replacements.
WITHOUT_A_UNIT = {"token expires", "rotate_token overlap", "pull start", "pull_columns start", "send_columns given"}
# An int that is no time beside a datetime that is one: a position of the queue.
POSITIONS = {"seek to"}
# Arrays of times beside arrays of sequences, of which the server made both.
ARRAYS = {"cancel_columns due_ms"}

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp()) * 1000


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield kind.__name__, kind.__init__  # type: ignore[misc]
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield name, method


def parameters() -> Iterator[tuple[str, str, str]]:
    """(method, parameter, annotation) of the public client, with the unions of aliases written out."""
    for kind in PUBLIC:
        for name, method in methods(kind):
            hints = get_type_hints(method)
            for parameter in inspect.signature(method).parameters:
                if parameter in hints:
                    yield name, parameter, str(hints[parameter])


def test_a_number_names_its_unit_and_a_timedelta_or_a_datetime_works_in_its_place() -> None:
    found = []
    for method, parameter, hint in parameters():
        place = f"{method} {parameter}"
        is_time = re.search(r"\bdatetime\.(timedelta|datetime)\b", hint) is not None
        numbers = re.search(r"\b(int|float)\b", hint) is not None
        if parameter.endswith(("_ms", "_s")) and not is_time and place not in ARRAYS:
            found.append(f"{place}: {hint} takes numbers alone")
        elif is_time and numbers and not parameter.endswith(("_ms", "_s")):
            found.append(f"{place}: a number without a unit")
    assert set(found) == {f"{place}: a number without a unit" for place in WITHOUT_A_UNIT | POSITIONS}


def test_all_that_a_public_method_returns_has_a_name_to_import() -> None:
    missing = set()
    for kind in (Client, AsyncClient):
        for name, method in methods(kind):
            said = str(get_type_hints(method).get("return", ""))
            for module, found in re.findall(r"(delayserver[\w.]*)\.(\w+)", said):
                if not hasattr(delayserver.client, found):
                    missing.add(f"{name} returns {module}.{found}")
    assert missing == set()
    assert sorted(delayserver.client.__all__) == delayserver.client.__all__
    assert all(hasattr(delayserver.client, name) for name in delayserver.client.__all__)


def test_both_clients_have_the_same_arguments() -> None:
    own = {"asynchronous", "close", "connect", "node_client", "end_waits", "placed", "unconnected"}
    blocking = {name: method for name, method in methods(Client) if name not in own | {"Client"}}
    for name, method in methods(AsyncClient):
        if name in own or name == "AsyncClient":
            continue
        assert list(inspect.signature(method).parameters) == list(inspect.signature(blocking[name]).parameters), name


def test_due_times_and_delays_are_numbers_datetimes_or_timedeltas() -> None:
    clock = ServerClock()
    assert resolve_due_ms(clock, NOW, None, None, None) == NOW_MS
    spans = [resolve_due_ms(clock, None, delay_ms, None, None) for delay_ms in (5000, timedelta(seconds=5))]
    assert abs(spans[0] - spans[1]) < 1000
    assert resolve_due_column(clock, NOW, None) == NOW_MS
    assert isinstance(resolve_due_column(clock, None, timedelta(seconds=1)), int)


def test_columns_are_given_bodies_first_or_as_before() -> None:
    due, bodies = np.array([1, 2]), [b"a", b"b"]
    for given in (
        columns_given(bodies, None, due, None),
        columns_given(due, bodies, None, None),
        columns_given(None, None, due, bodies),
        columns_given(due, None, None, bodies),
    ):
        assert given[0] is due and given[1] is bodies
    with pytest.raises(InvalidArgument):
        columns_given(due, bodies, due, None)
    with pytest.raises(InvalidArgument):
        columns_given(due, bodies, None, bodies)


def test_times_of_every_kind_reach_the_server(server: FakeServer, connect: Connect) -> None:
    with connect(server.address, timeout_s=timedelta(seconds=10)) as client:
        client.send("a", b"", due_ms=NOW, expires_ms=NOW)
        client.send_many([Message("a", b"", due_ms=NOW, expires_ms=NOW), Message("a", b"", delay_ms=timedelta(0))])
        client.send_columns("a", [b"x"], due_ms=NOW, expires_ms=NOW)
        client.send_one_way("a", b"", delay=timedelta(0))
        client.ping()
        assert [stored.due_ms for stored in server.messages[:2]] == [NOW_MS] * 2
        assert [stored.expires_ms for stored in server.messages if stored.due_ms == NOW_MS] == [NOW_MS] * 3
        client.pull("a", "g", wait_s=timedelta(0), ack_timeout_s=timedelta(seconds=30), start_ms=NOW)
        pull = server.requests[-1].arguments
        assert (pull["wait_ms"], pull["ack_timeout_ms"], pull["start"]) == (0, 30_000, NOW_MS)
    assert Retry(delay_ms=timedelta(seconds=1)).delay_ms == 1000
