"""Paths to endpoints. A path is matched by its segments as they came, before decoding: a subject may contain a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from delayserver.web.answers import EVENTS, Send
from delayserver.web.bodies import Receive, Scope
from delayserver.web.problems import Problem, invalid

Handler: TypeAlias = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""Answers a request. The second argument has the decoded segments of the path by their names."""


Direct: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""Answers a request without the cost of a request and a response object, or while the body still comes."""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """One way in which an endpoint answers: what it means, the type of its document, and the media type. With ``rows`` the
    document is a list, whose items have these types. Without a ``media`` there is no document.
    """

    says: str
    document: Any = None
    media: str = "application/json"
    rows: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path, and all that the API document says about it. ``path`` has segments such as ``{subject}``.
    ``query`` and ``body`` are msgspec types; ``errors`` the status codes of its problem documents. It has a ``handler`` or
    is ``direct``.
    """

    method: str
    path: str
    handler: Handler | None
    summary: str
    answers: Mapping[int, EndpointAnswer]
    body: Any = None
    medias: tuple[str, ...] = ("application/json",)
    query: Any = None
    errors: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    direct: Direct | None = None

    @property
    def streams(self) -> bool:
        """Whether it answers with a stream of events."""
        return any(answer.media == EVENTS for answer in self.answers.values())

    @property
    def name(self) -> str:
        """The id of the operation in the API document."""
        return getattr(self.handler or self.direct, "__name__", "")


@dataclass(slots=True)
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: tuple[str, _Node] | None = None
    endpoints: dict[str, Endpoint] = field(default_factory=dict)

    def child(self, segment: str) -> _Node:
        """The node behind a segment of a route, made if it is not there."""
        if not segment.startswith("{"):
            return self.literals.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = (segment.strip("{}"), _Node())
        return self.parameter[1]


class Router:
    """The endpoints by path and method."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._root = _Node()
        for endpoint in endpoints:
            node = self._root
            for segment in endpoint.path.strip("/").split("/"):
                node = node.child(segment)
            assert endpoint.method not in node.endpoints, f"two endpoints for {endpoint.method} {endpoint.path}"
            node.endpoints[endpoint.method] = endpoint

    def find(self, method: str, raw_path: str) -> tuple[Endpoint, dict[str, str]] | None:
        """The endpoint of a request, and the decoded segments by name. None if no endpoint has this path. Raises `Problem`
        for a path that has endpoints of other methods only, and for one that is not UTF-8.
        """
        node, found = self._root, {}
        for segment in raw_path[1:].split("/"):
            literal = node.literals.get(segment)
            if literal is not None:
                node = literal
            elif node.parameter is not None and segment:
                name, node = node.parameter
                try:
                    found[name] = unquote_to_bytes(segment).decode()
                except UnicodeDecodeError:
                    raise invalid(f"{name} in the path is not UTF-8: {segment[:80]}") from None
            else:
                return None
        if not node.endpoints:
            return None
        endpoint = node.endpoints.get("GET" if method == "HEAD" else method)
        # A stream takes messages from their group, and HEAD would drop them.
        if endpoint is None or (method == "HEAD" and endpoint.streams):
            allowed = ", ".join(sorted(node.endpoints))
            raise Problem(
                405, "method_not_allowed", f"{raw_path[:200]} takes {allowed}", fields={"allowed": allowed.split(", ")}
            )
        return endpoint, found
