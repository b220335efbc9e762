"""Listeners whose handlers work for long: their leases are extended, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from delayserver.client import Client, Delivery
from tests.delayserver.cli.conftest import Server
from tests.delayserver.client.listening.listeners import KINDS, Held, is_done, listening, numbered, send, until


def for_each_kind_at_once(check: Callable[[str], None]) -> None:
    """Check a listener of each flavour, all at the same time: they wait for seconds."""
    with ThreadPoolExecutor(len(KINDS)) as threads:
        list(threads.map(check, KINDS))


def the_lease_is_extended_also_while_the_listener_stops(address: str, kind: str) -> None:
    held, subject = Held(), f"works-for-long-{kind}"
    with Client(address) as client:
        send(client, subject, b"7")
        with listening(kind, address, {(subject,): held}, ack_timeout_s=12) as listener:
            until(lambda: listener.stats.extended == 1, "the first extension")
            listener.ask_to_stop()
            until(lambda: listener.stats.extended == 2, "the second extension")
            held.go.set()
            listener.join()
        assert (held.attempts, listener.stats.acked, listener.stats.overdue, listener.stats.too_late) == ([1], 1, 0, 0)
        assert is_done(client, subject)


def test_the_lease_of_a_handler_that_works_for_long_is_extended_also_while_the_listener_stops(node: Server) -> None:
    for_each_kind_at_once(partial(the_lease_is_extended_also_while_the_listener_stops, node.address))


def a_lease_of_a_found_subject_is_extended(address: str, kind: str) -> None:
    held, subject = Held(), f"found-by-pattern-{kind}"
    with Client(address) as client:
        send(client, f"{subject}.a", b"7")
        with listening(kind, address, {(f"{subject}.*",): held}, ack_timeout_s=12) as listener:
            until(lambda: listener.stats.extended == 1, "the first extension")
            held.go.set()
        assert (held.attempts, listener.stats.acked) == ([1], 1)


def test_a_listener_that_names_patterns_alone_extends_its_leases(node: Server) -> None:
    for_each_kind_at_once(partial(a_lease_of_a_found_subject_is_extended, node.address))


def the_others_are_extended(address: str, kind: str) -> None:
    held, running, subject = Held(), list[Delivery](), f"one-has-ended-{kind}"

    def handle(message: Delivery) -> None:
        running.append(message)
        held(message)

    with Client(address) as client:
        send(client, subject, *numbered(5))
        with listening(kind, address, {(subject,): handle}, ack_timeout_s=12, concurrency=5) as listener:
            until(lambda: len(running) == 5)
            assert client.ack(subject, "shop", running[2:3]).acked == 1
            until(lambda: listener.stats.extended == 4, "the extensions of the others")
            until(lambda: listener.stats.overdue == 1, "the report of the one that ended")
            held.go.set()
            until(lambda: listener.stats.acked == 4 and listener.stats.too_late == 1)
        assert held.attempts == [1] * 5


def test_a_lease_that_has_ended_does_not_keep_others_from_being_extended(node: Server) -> None:
    for_each_kind_at_once(partial(the_others_are_extended, node.address))
