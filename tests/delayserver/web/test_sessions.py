"""Sessions end by themselves, and their number has a bound."""

from __future__ import annotations

import os

import pytest

from delayserver.web.origins import check_site, is_loopback_name
from delayserver.web.problems import Problem
from delayserver.web.sessions import AGE_S_MAX, IDLE_S, SESSIONS_MAX, SESSIONS_OF_TOKEN_MAX, Sessions, cookie_name


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_session_ends_when_it_is_idle_or_old() -> None:
    now = Now()
    sessions = Sessions(now, os.urandom)
    idle, used = sessions.begin("one"), sessions.begin("two")
    while now.s < AGE_S_MAX - IDLE_S / 2:
        now.s += IDLE_S / 2
        assert sessions.token_of(used) == "two"
    assert sessions.token_of(idle) is None
    now.s += IDLE_S / 2 + 1
    assert sessions.token_of(used) is None and len(sessions) == 0


def test_a_stream_uses_its_session_which_ends_all_the_same() -> None:
    now = Now()
    sessions = Sessions(now, os.urandom)
    session = sessions.begin("one")
    while now.s < AGE_S_MAX:
        assert sessions.lasts(session)
        now.s += IDLE_S
    now.s += 1
    assert not sessions.lasts(session) and sessions.token_of(session) is None


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:20880", "delayserver_session_20880"),
        ("[::1]:20881", "delayserver_session_20881"),
        ("delay.example", "delayserver_session"),
        ("", "delayserver_session"),
        ("a:1; Domain=example", "delayserver_session"),
        ("a:\u0662", "delayserver_session"),
    ],
)
def test_the_cookie_has_the_port_in_its_name(host: str, name: str) -> None:
    assert cookie_name(host) == name


def test_sessions_of_one_token_do_not_end_those_of_others() -> None:
    sessions = Sessions(Now(), os.urandom)
    admin, first = sessions.begin("admin"), sessions.begin("greedy")
    for _ in range(SESSIONS_MAX):
        sessions.begin("greedy")
    assert sessions.token_of(admin) == "admin" and sessions.token_of(first) is None
    assert len(sessions) == 1 + SESSIONS_OF_TOKEN_MAX


def test_the_session_that_was_used_least_recently_gives_way() -> None:
    sessions = Sessions(Now(), os.urandom)
    first, second = sessions.begin("first"), sessions.begin("second")
    for number in range(SESSIONS_MAX - 2):
        sessions.begin(f"other {number}")
    assert sessions.token_of(first) == "first"
    sessions.begin("one more")
    assert sessions.token_of(second) is None and sessions.token_of(first) == "first"
    assert len(sessions) == SESSIONS_MAX


def test_ids_are_not_guessed_and_an_ended_session_is_gone() -> None:
    sessions = Sessions(Now(), os.urandom)
    one, two = sessions.begin("t"), sessions.begin("t")
    assert one != two and len(one) == 64
    sessions.end(one)
    assert sessions.token_of(one) is None and sessions.token_of(two) == "t"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "127.1.2.3:80", "[::1]:80", "a.localhost"])
def test_loopback_names_are_recognised(host: str) -> None:
    assert is_loopback_name(host)


@pytest.mark.parametrize("host", ["", "evil", "localhost.evil", "127.0.0.1.evil", "0.0.0.0", "10.0.0.1", "[::2]", "["])
def test_names_of_other_hosts_are_no_loopback_names(host: str) -> None:
    assert not is_loopback_name(host)


@pytest.mark.parametrize(
    "name, foreign, own", [(b"origin", b"http://b", b"http://a"), (b"sec-fetch-site", b"cross-site", b"none")]
)
def test_one_foreign_place_among_several_is_foreign(name: bytes, foreign: bytes, own: bytes) -> None:
    check_site([(b"host", b"a"), (name, own)])
    for order in ([foreign, own], [own, foreign]):
        with pytest.raises(Problem, match="Host on as it came" if name == b"origin" else "another site"):
            check_site([*[(name, value) for value in order], (b"host", b"a")])
