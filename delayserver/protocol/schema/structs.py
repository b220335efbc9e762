"""What all requests and replies have in common: how a field is described, and how a map of the wire is read and written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import Signature
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct, StructMeta, inspect

from delayserver.protocol.arguments import invalid, shown
from delayserver.protocol.errors import DelayServerError, SubjectInvalid

T = TypeVar("T", bound=Struct)

ACTION: Final = "action"
"""The argument that says which of several requests of one operation is meant."""
_NOTHING: Final = object()


class Shown(StructMeta):
    """Types whose signature, as `help` shows it, has the plain types of the fields, without what `says` notes of them."""

    @property
    def __signature__(self) -> Signature:
        found: Signature = super().__signature__
        plain = get_type_hints(self)
        return found.replace(
            parameters=[each.replace(annotation=plain[each.name]) for each in found.parameters.values()]
        )


class Request(Struct, metaclass=Shown, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of a request. Those that have their default are not sent. A tag is the value of `action`."""


class Reply(Struct, metaclass=Shown, frozen=True, omit_defaults=True):
    """The result of a request, or a part of it. HTTP leaves out what has its default, the wire what is `left_out`."""


class Facts(NamedTuple):
    """What `says` notes of a field."""

    text: str = ""
    expected: str = ""
    bytes_max: int | None = None
    is_name: bool = False
    left_out: bool = False
    error: type[DelayServerError] | None = None
    written: str = ""


def says(
    text: str,
    example: Any = None,
    *,
    expected: str = "",
    bytes_max: int | None = None,
    is_name: bool = False,
    left_out: bool = False,
    error: type[DelayServerError] | None = None,
    written: str = "",
    **bounds: Any,
) -> Meta:
    """Describes a field: what it means, and an example of its value.

    `expected` describes a right value for an error, where the type does not say it. `bytes_max` bounds a text. `is_name`:
    a wrong value is `subject_invalid`. `error`: a wrong value is this error. `left_out`: the wire has no field with the
    default. `written` names the type in the documents, where the field takes any. `bounds` are those of `Meta`.
    """
    facts = Facts(text, expected, bytes_max, is_name, left_out, error, written)
    examples = None if example is None else [example]
    return Meta(description=text, examples=examples, extra={"facts": facts}, **bounds)


def read_request(arguments: Mapping[str, Any], *kinds: type[T]) -> T:
    """The request of a map of arguments. Of several kinds `action` names one. Raises InvalidArgument, SubjectInvalid."""
    kind = kinds[0] if len(kinds) == 1 else _kind_of(arguments, kinds)
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        request = msgspec.convert(given, kind)
    except msgspec.ValidationError:
        raise _first_wrong(given, kind) from None
    for name, bytes_max in _bounded_texts(kind):
        if len((getattr(request, name) or "").encode(errors="replace")) > bytes_max:
            raise _first_wrong(given, kind)
    return request


def arguments_of(request: Request) -> dict[str, Any]:
    """The map of arguments of a request. It holds the values themselves: one of no type of the wire is refused where the
    frame is made."""
    kind = type(request)
    tag = kind.__struct_config__.tag
    arguments: dict[str, Any] = {} if tag is None else {ACTION: tag}
    for name, default in _defaults_of(kind):
        value = getattr(request, name)
        # The types too: a foreign value may compare with anything, and need not answer with a truth value.
        if type(value) is not type(default) or value != default:
            arguments[name] = value
    return arguments


def read_reply(result: Mapping[str, Any], kind: type[T]) -> T:
    """The reply of a map. Keys that the type has not are ignored. Raises ValueError."""
    return msgspec.convert(result, kind)


def result_of(reply: Struct) -> dict[str, Any]:
    """The map of a reply, with those in it. It holds the values themselves, no copies."""
    result = {}
    for name, wire_name, absent in _fields_of(type(reply)):
        value = getattr(reply, name)
        if value is not absent and value != absent:
            result[wire_name] = _wire_value(value)
    return result


def _wire_value(value: Any) -> Any:
    if isinstance(value, Struct):
        return result_of(value)
    if isinstance(value, (list, tuple)):
        return [_wire_value(each) for each in value]
    return value


def facts_of(field: inspect.Field) -> Facts:
    """What `says` has noted of a field."""
    kind = _without_nil(field.type)
    facts: Facts = ((kind.extra or {}) if isinstance(kind, inspect.Metadata) else {}).get("facts", Facts())
    return facts


def plain(kind: inspect.Type) -> inspect.Type:
    """A type without its description, and without nil."""
    kind = _without_nil(kind)
    return plain(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _without_nil(kind: inspect.Type) -> inspect.Type:
    if not isinstance(kind, inspect.UnionType):
        return kind
    return next(each for each in kind.types if not isinstance(each, inspect.NoneType))


def described(kind: type[Struct]) -> tuple[inspect.Field, ...]:
    """The fields of a request or a reply, in their order."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


@cache
def _fields_of(kind: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Names of fields, here and on the wire, and the value with which the wire has no such field."""
    absent = [field.default if facts_of(field).left_out else _NOTHING for field in described(kind)]
    return tuple([(field.name, field.encode_name, each) for field, each in zip(described(kind), absent, strict=True)])


@cache
def _defaults_of(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple([(field.name, field.default) for field in described(kind)])


@cache
def _bounded_texts(kind: type[Struct]) -> tuple[tuple[str, int], ...]:
    bounds = [(field.name, facts_of(field).bytes_max) for field in described(kind)]
    return tuple([(name, bytes_max) for name, bytes_max in bounds if bytes_max is not None])


def _kind_of(arguments: Mapping[str, Any], kinds: tuple[type[T], ...]) -> type[T]:
    tags = {kind.__struct_config__.tag: kind for kind in kinds}
    action = arguments.get(ACTION)
    kind = tags.get(action) if type(action) is str else None
    if kind is None:
        raise invalid(ACTION, f"one of {', '.join(map(str, tags))}", action)
    return kind


def _first_wrong(given: Mapping[str, Any], kind: type[Struct]) -> DelayServerError:
    """The error of the first field that is wrong."""
    wrong = next(field for field in described(kind) if not _is_right(field, given, kind))
    value, facts = given.get(wrong.encode_name), facts_of(wrong)
    if facts.is_name:
        return SubjectInvalid(f"a {wrong.name} is a text of at least one character, not {shown(value)}")
    error = invalid(wrong.encode_name, _expected(wrong), value)
    return error if facts.error is None else facts.error(error.message)


def _is_right(field: inspect.Field, given: Mapping[str, Any], kind: type[Struct]) -> bool:
    if field.encode_name not in given:
        return not field.required
    value, bytes_max = given[field.encode_name], facts_of(field).bytes_max
    try:
        msgspec.convert(value, _types_of(kind)[field.name])
    except msgspec.ValidationError:
        return False
    return bytes_max is None or len(value.encode(errors="replace")) <= bytes_max


@cache
def _types_of(kind: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _expected(field: inspect.Field) -> str:
    """A right value in words."""
    facts = facts_of(field)
    kind = plain(field.type)
    if facts.expected:
        return str(facts.expected)
    if isinstance(kind, inspect.IntType):
        return f"an integer from {kind.ge} to {kind.le}"
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    assert isinstance(kind, inspect.StrType), "other types say what is expected"
    if kind.min_length:
        return (
            "a text of at least one character" if facts.bytes_max is None else f"a text of 1 to {facts.bytes_max} bytes"
        )
    return "a text" if facts.bytes_max is None else f"a text of at most {facts.bytes_max} bytes"
