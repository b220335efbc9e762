"""Which requests come from a page of another site. Pure: headers in, a problem or nothing out.

A browser sends requests that any page makes, with the cookies of this site, and to servers on the person's machine. It says
where the page is from, in `Sec-Fetch-Site` or `Origin`. Programs that are no browsers send neither.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from delayserver.web.problems import Problem

HOST_CHARACTERS_MAX: Final = 300
"""A name of DNS has at most 253, and a port five."""
_NO_URL: Final = frozenset("/?#@\\")
"""What would make a host more than a name and a port."""
_OURS: Final = frozenset({b"same-origin", b"none"})
_CROSS_SITE: Final = "the request comes from a page of another site; open the console, or call the API from a program"
DELIBERATE: Final = "X-Delayserver"
"""A header with any value. A page of another site can send it only if this gateway permits that, which it never does."""
_DELIBERATE: Final = DELIBERATE.lower().encode()
_NOT_DELIBERATE: Final = (
    "the request takes messages, and a link of any page can make a GET: ask with POST, or send the header "
    f"{DELIBERATE} or Authorization"
)
_OTHER_ORIGIN: Final = f"{_CROSS_SITE}. A proxy before the console passes Host on as it came"


def check_site(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `Problem` for a request that a page of another site makes, whatever its method."""
    origins: list[bytes] = []
    host = b""
    for name, value in headers:
        if name == b"sec-fetch-site" and value not in _OURS:
            raise Problem(403, "cross_site", _CROSS_SITE)
        if name == b"origin":
            origins.append(value)
        elif name == b"host":
            host = value.lower()
    if any(_place(origin) != host for origin in origins):
        raise Problem(403, "cross_site", _OTHER_ORIGIN)


def require_deliberate(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `Problem` for a GET that changes something, unless it has a header that no link, image or form can send. Over
    HTTP without TLS, under a name that is not loopback, a browser does not say which page such a request comes from."""
    for name, value in headers:
        if name in (_DELIBERATE, b"authorization") or (name == b"sec-fetch-site" and value == b"same-origin"):
            return
    raise Problem(403, "cross_site", _NOT_DELIBERATE)


def _place(origin: bytes) -> bytes:
    """Host and port of an origin, as `Host` has them; nothing for `null`."""
    scheme, separator, place = origin.lower().partition(b"://")
    return place if separator and scheme in (b"http", b"https") else b"?"


def is_loopback_name(host: str) -> bool:
    """Whether a `Host` header names this machine itself. Another name that leads here may belong to anybody, who then reads
    what a browser gets from the server under that name (DNS rebinding)."""
    return len(host) <= HOST_CHARACTERS_MAX and _is_loopback_name(host)


@lru_cache(64)
def _is_loopback_name(host: str) -> bool:
    if not _NO_URL.isdisjoint(host):
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
