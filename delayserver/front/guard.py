"""Which role an operation needs, and where its request names subjects. A server with tokens asks this of every request.

A server without tokens does not come here: its handlers are called as they are. Receipts name no subject, so the
operations that take them compare the subject of the message that they find (`Naming`). Lists leave out what is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from delayserver.front.connection import Connection, QuickHandler, SlowHandler
from delayserver.operations.access.access import ADMIN, CONSUME, EVERYTHING, LOOK, SEND, Access
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol import operation_names as names_of
from delayserver.protocol.errors import Forbidden, Unauthenticated
from delayserver.protocol.frames import RequestFrame
from delayserver.runtime.acting import act_for

Check = Callable[[Access, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """The right to call an operation: a token with one of the `roles`, whose subjects pass the `check`. `operator`: also a
    server that has proven itself, without a token."""

    roles: frozenset[str]
    check: Check | None = None
    operator: bool = False


def _subject(access: Access, arguments: dict[str, Any]) -> None:
    """The one subject of a request, if it names one."""
    subject = arguments.get("subject")
    if type(subject) is str:
        access.require(subject)


def _messages(access: Access, arguments: dict[str, Any]) -> None:
    """The subjects of messages in rows or columns. A refusal takes the place of what is closed, so that the rest passes."""
    if not access.everything:
        messages, subjects = arguments.get("messages"), arguments.get("subjects")
        _subject(access, arguments)
        if type(messages) is list:
            for place, message in enumerate(messages):
                subject = message.get("subject") if type(message) is dict else None
                if type(subject) is str and not access.may(subject):
                    messages[place] = access.refusal(subject)
        if type(subjects) is list:
            for place, subject in enumerate(subjects):
                if type(subject) is str and not access.may(subject):
                    subjects[place] = access.refusal(subject)
    if access.limits is not None:
        access.limits.take(*_size(arguments, "messages"))


def _moves(access: Access, arguments: dict[str, Any]) -> None:
    """Each move writes a message anew, so it counts as one."""
    if access.limits is not None:
        access.limits.take(*_size(arguments, "items"), more_wait=False)


# What counts as bytes of a message, beside its properties: in rows, and as blobs of columns.
_OF_ROWS: Final = ("body", "message_id", "order_key")
_OF_COLUMNS: Final = ("bodies", "message_ids", "order_keys", "properties")


def _size(arguments: dict[str, Any], rows: str) -> tuple[int, int]:
    """How many messages a request brings, and their bytes: bodies, ids, order keys and properties. Its argument `rows` has
    them, if it has no columns."""
    messages = arguments.get(rows)
    if type(messages) is list:
        return len(messages), sum([_message_bytes(message) for message in messages if type(message) is dict])
    count = arguments.get("count")
    size_bytes = sum([_bytes(arguments.get(name)) for name in _OF_COLUMNS])
    return (count if type(count) is int and 0 < count < 1 << 31 else 1), size_bytes


def _message_bytes(message: dict[str, Any]) -> int:
    """The bytes of a message in rows."""
    size_bytes = sum([_bytes(message.get(name)) for name in _OF_ROWS])
    properties = message.get("properties")
    if type(properties) is dict:
        size_bytes += sum([_bytes(name) + _bytes(value) for name, value in properties.items()])
    return size_bytes


def _bytes(value: object) -> int:
    """The bytes of a body or of another value. A text may have up to four for a character."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
    return len(value) if isinstance(value, bytes | memoryview | bytearray) else 0


def _prepared(access: Access, arguments: dict[str, Any]) -> None:
    """Check-backs of a producer's group are messages too."""
    group = arguments.get("group")
    if type(group) is str:
        access.require(f"{group}.check")
    _messages(access, arguments)


def _policy(access: Access, arguments: dict[str, Any]) -> None:
    _subject(access, arguments)
    if arguments.get("set") is not None or arguments.get("reset"):
        _require_admin(access, "a policy is changed")


def _dead_letters(access: Access, arguments: dict[str, Any]) -> None:
    _subject(access, arguments)
    if arguments.get("action") != "list":
        _require_admin(access, "dead letters are sent again or dropped")


def _cluster(access: Access, arguments: dict[str, Any]) -> None:
    if arguments.get("action") != "show":
        _require_admin(access, "the leadership is moved")
        _everything(access, arguments)


def _waiting_keys(access: Access, arguments: dict[str, Any]) -> None:
    _subject(access, arguments)
    if arguments.get("action") != "list":
        _require_admin(access, "waiting keys are skipped or tried again")


def _schedule(access: Access, arguments: dict[str, Any]) -> None:
    """A token that sends may change schedules of its subjects, and reads no bodies. The operation compares the subjects of
    those that exist."""
    action = arguments.get("action")
    role = LOOK if action == "show" else SEND
    if action not in ("list", "next") and access.roles.isdisjoint({role, ADMIN}):
        raise Forbidden(f"this is for tokens with the role {role}; {access.token_id} has {_listed(access.roles)}")
    _subject(access, arguments)


def _pending(access: Access, arguments: dict[str, Any]) -> None:
    if arguments.get("by") not in ("subject", "message"):
        access.require_everything("the count of all subjects")


def _redispatch(access: Access, arguments: dict[str, Any]) -> None:
    if arguments.get("subject") is None:
        access.require_everything("redispatch without a subject")
    _subject(access, arguments)


def _everything(access: Access, _arguments: dict[str, Any]) -> None:
    access.require_everything("this operation")


def _require_admin(access: Access, what: str) -> None:
    if ADMIN not in access.roles:
        raise Forbidden(f"{what} by tokens with the role admin; {access.token_id} has {_listed(access.roles)}")


def _listed(roles: frozenset[str]) -> str:
    return " and ".join(sorted(roles))


_ANY: Final = frozenset({SEND, CONSUME, LOOK})

# Operations that need no right: client and server identify themselves by them. With `prove` a server shows that it is one.
FREE: Final = frozenset({names_of.HELLO, names_of.PING, names_of.PROVE})
# Operations of servers, which prove that they know the secret. No token opens them.
OF_SERVERS: Final = frozenset({names_of.DELIVER, names_of.WINDOW_COMPLETE})

RULES: Final[Mapping[str, Rule]] = {
    names_of.SEND: Rule(frozenset({SEND}), _messages),
    names_of.PUBLISH: Rule(frozenset({SEND}), _messages),
    names_of.PREPARE: Rule(frozenset({SEND}), _prepared),
    names_of.COMMIT: Rule(frozenset({SEND})),
    names_of.ROLLBACK: Rule(frozenset({SEND})),
    names_of.TRANSACTIONS: Rule(frozenset({LOOK})),
    names_of.CANCEL: Rule(frozenset({SEND})),
    names_of.RESCHEDULE: Rule(frozenset({SEND}), _moves),
    names_of.LOOKUP: Rule(frozenset({SEND, LOOK})),
    names_of.ROUTE: Rule(_ANY, _subject),
    names_of.MAP: Rule(_ANY),
    names_of.SUBJECTS: Rule(_ANY),
    names_of.PULL: Rule(frozenset({CONSUME}), _subject),
    names_of.CANCEL_WAIT: Rule(frozenset({CONSUME})),
    names_of.ACK: Rule(frozenset({CONSUME}), _subject),
    names_of.NACK: Rule(frozenset({CONSUME}), _subject),
    names_of.EXTEND: Rule(frozenset({CONSUME}), _subject),
    names_of.READ: Rule(frozenset({CONSUME, LOOK}), _subject),
    names_of.GROUP: Rule(frozenset({CONSUME, LOOK}), _subject),
    names_of.GROUPS: Rule(frozenset({LOOK}), _subject),
    names_of.FIND: Rule(frozenset({LOOK}), _subject),
    names_of.STATUS: Rule(frozenset({LOOK})),
    names_of.METRICS: Rule(frozenset({LOOK})),
    names_of.PENDING: Rule(frozenset({LOOK}), _pending),
    names_of.POLICY: Rule(frozenset({CONSUME, LOOK}), _policy),
    names_of.DEAD_LETTERS: Rule(frozenset({CONSUME, LOOK}), _dead_letters),
    names_of.WAITING_KEYS: Rule(frozenset({CONSUME, LOOK}), _waiting_keys),
    names_of.SCHEDULE: Rule(frozenset({SEND, LOOK}), _schedule),
    names_of.SEEK: Rule(frozenset({ADMIN}), _subject),
    names_of.REMOVE_GROUP: Rule(frozenset({ADMIN}), _subject),
    names_of.REDISPATCH: Rule(frozenset({ADMIN}), _redispatch, operator=True),
    names_of.RELOAD: Rule(frozenset({ADMIN}), _everything, operator=True),
    names_of.TOKEN: Rule(frozenset({ADMIN}), _everything),
    names_of.SNAPSHOT: Rule(frozenset({ADMIN}), _everything, operator=True),
    names_of.CLUSTER: Rule(frozenset({LOOK}), _cluster, operator=True),
}
"""The rule of each operation that is neither free nor a server's. `admin` includes the other roles."""


class Guard:
    """Puts the rules of a server with tokens before its handlers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def quick(self, handlers: Mapping[str, QuickHandler]) -> dict[str, QuickHandler]:
        """The handlers behind their rules."""
        return {name: self._before_quick(name, handler) for name, handler in handlers.items()}

    def slow(self, handlers: Mapping[str, SlowHandler]) -> dict[str, SlowHandler]:
        """The handlers behind their rules, which are asked before the handler is called."""
        return {name: self._before_slow(name, handler) for name, handler in handlers.items()}

    def _before_quick(self, name: str, handler: QuickHandler) -> QuickHandler:
        if name in FREE:
            return handler
        ask = self._ask(name)

        def guarded(connection: Connection, request: RequestFrame) -> None:
            act_for(connection.access.token_id)
            ask(connection, request)
            handler(connection, request)

        return guarded

    def _before_slow(self, name: str, handler: SlowHandler) -> SlowHandler:
        ask = self._ask(name)

        def guarded(connection: Connection, request: RequestFrame) -> Awaitable[dict[str, Any] | None]:
            act_for(connection.access.token_id)
            ask(connection, request)
            return handler(connection, request)

        return guarded

    def _ask(self, name: str) -> Callable[[Connection, RequestFrame], None]:
        """Raises Unauthenticated, Forbidden, ServerNotProven, RateLimited. An operation without a rule is a bug."""
        servers = self._servers
        if name in OF_SERVERS:
            return lambda connection, _: servers.check_proven(connection.peer)
        rule = RULES[name]
        roles, check, operator = rule.roles | {ADMIN}, rule.check, rule.operator

        def ask(connection: Connection, request: RequestFrame) -> None:
            access = connection.access
            if access is EVERYTHING:
                if operator and servers.is_proven(connection.peer):
                    return
                raise Unauthenticated("this server asks for a token: give the client one (`delayserver token create`)")
            if roles.isdisjoint(access.roles):
                raise Forbidden(
                    f"{name} is for tokens with the role {_listed(rule.roles)}; {access.token_id} has "
                    f"{_listed(access.roles)}"
                )
            if check is not None:
                check(access, request.arguments)
            if operator:
                servers.permit(connection.peer)

        return ask
