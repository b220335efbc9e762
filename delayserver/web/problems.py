"""Errors over HTTP: problem documents of RFC 9457, with the names of the wire protocol. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from delayserver.protocol.errors import (
    DelayServerError,
    NotPrimary,
    ProtocolError,
    Refused,
    Unauthenticated,
    Unavailable,
)
from delayserver.protocol.outcomes import Outcome

PROBLEM_JSON: Final = "application/problem+json"

STATUSES: Final[Mapping[str, int]] = {
    "message_too_large": 413,
    "batch_too_large": 413,
    "frame_too_large": 413,
    "too_far": 422,
    "too_old": 422,
    "foreign_receipt": 421,
    "published_elsewhere": 421,
    "not_routed": 404,
    "group_unknown": 404,
    "transaction_unknown": 404,
    "transaction_ended": 409,
    "filter_in_use": 409,
    "server_not_proven": 403,
    "unauthenticated": 401,
    "forbidden": 403,
    "rate_limited": 429,
    "subjects_full": 507,
    "tags_full": 507,
    "groups_full": 507,
    "disk_full": 507,
    "unknown_operation": 501,
    "connection_lost": 502,
    "malformed_frame": 502,
    "unknown_error": 502,
    "timed_out": 504,
    "in_doubt": 504,
    "deadline_passed": 504,
}
"""Status codes of errors whose class does not give it. `status_of` knows the rest."""

TITLES: Final[Mapping[int, str]] = {
    307: "The primary of the cluster has it",
    400: "The request is not valid",
    401: "A token is needed",
    403: "Not permitted",
    404: "Not found",
    405: "The path has no such method",
    408: "The request came too slowly",
    409: "The state does not allow it",
    413: "Too large",
    416: "Nothing is there",
    415: "The body has a type that is not taken here",
    421: "Another server has it",
    422: "The message cannot be taken as it is",
    429: "Too many requests",
    431: "The head of the request is too large",
    500: "The server has a bug",
    501: "The server does not know this operation",
    502: "The server did not answer",
    503: "Not now",
    504: "The server did not answer in time",
    507: "No room",
}


class Problem(Exception):
    """An answer that is an error. ``error`` is its name, ``detail`` a sentence for people. ``fields`` are further members
    of the document.
    """

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        retry_after_ms: int | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.retry_after_ms = retry_after_ms
        self.fields: Mapping[str, Any] = fields or {}

    def document(self) -> dict[str, Any]:
        """The members of the problem document."""
        document: dict[str, Any] = {
            "type": f"urn:delayserver:error:{self.error}",
            "title": TITLES[self.status],
            "status": self.status,
            "detail": self.detail,
            "error": self.error,
            **self.fields,
        }
        if self.retry_after_ms is not None:
            document["retry_after_ms"] = self.retry_after_ms
        return document

    def headers(self) -> dict[str, str]:
        """The headers of the answer beside its type and length."""
        headers = {}
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(-(-self.retry_after_ms // 1000))
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="delayserver"'
        if "location" in self.fields:
            headers["location"] = self.fields["location"]
        if "allowed" in self.fields:
            headers["allow"] = ", ".join(self.fields["allowed"])
        return headers

    def encoded(self) -> bytes:
        """The document as JSON, with a newline at its end."""
        return msgspec.json.encode(self.document()) + b"\n"


def status_of(error: DelayServerError) -> int:
    """The status code of a named error."""
    known = STATUSES.get(error.name)
    if known is not None:
        return known
    if isinstance(error, Refused | ProtocolError):
        return 400
    return 503 if isinstance(error, Unavailable) else 500


def problem_of(error: DelayServerError) -> Problem:
    """The problem document of a named error."""
    if isinstance(error.__cause__, Unauthenticated):  # the token ended while the request was under way
        error = error.__cause__
    return Problem(
        status_of(error), error.name, error.message, retry_after_ms=error.retry_after_ms, fields=dict(error.details)
    )


def redirect_of(error: NotPrimary, path: str) -> Problem:
    """The answer of a standby to a request for this path and query: where the primary is, if the standby knows that."""
    if not error.http:
        return problem_of(error)
    fields = dict(error.details) | {"location": f"{error.http.rstrip('/')}{path}"}
    return Problem(307, error.name, error.message, fields=fields)


def ended_before(what: str, outcome: Outcome, receipt: str | None, **fields: Any) -> Problem:
    """The problem of a request about a message that has gone too far. `what`: what that means for the request."""
    known = {name: value for name, value in ({"receipt": receipt} | fields).items() if value is not None}
    return Problem(
        409,
        "message_ended",
        f"{what}: the message is {outcome.label.replace('_', ' ')}",
        fields={"outcome": outcome.label, **known},
    )


def invalid(detail: str) -> Problem:
    """A request whose fields or headers are wrong."""
    return Problem(400, "invalid_argument", detail)
