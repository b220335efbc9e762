"""Settings from a TOML file and from flags. Every key is checked here. Errors give its full name; no key is ignored.

The dataclasses of `settings.py` define the keys, their types and defaults. A new setting needs a line here only if its
values have other bounds than "a whole number of at least 1". The environment is not read.
"""

from __future__ import annotations

import dataclasses
import difflib
import errno
import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

from delayserver.config.settings import GroupSettings, NodeSettings, Settings
from delayserver.config.units import parse_delay_levels, parse_duration_ms, parse_size_bytes
from delayserver.protocol.addresses import parse_address
from delayserver.targets.registry import capabilities_of, kind_of, read_address
from store.logs.due_windows import check_window_ms

DAY_MS: Final = 86_400_000
U32_MAX: Final = 2**32 - 1
I64_MAX: Final = 2**63 - 1
NAMES_SHOWN_MAX: Final = 20
WINDOWS_AHEAD_MAX: Final = 1_440
PATH_SHOWN_MAX: Final = 255
FILE_BYTES_MAX: Final = 4 << 20
"""A configuration has some KiB. A larger file is another one, or a device without an end."""
DEPTH_MAX: Final = 16
"""Tables and lists within each other in a file. The settings need five; a walk through them must not end the process."""

CHOICES: Final = {
    "storage.durability": ("sync", "os"),
    "transactions.policy": ("rollback", "commit"),
    "log.format": ("auto", "text", "json"),
    "log.level": ("debug", "info", "warning", "error"),
}

ZERO_ALLOWED: Final = frozenset(
    {
        "listen.port",  # any free port
        "http.port",  # no HTTP
        "storage.message_log_retention_ms",
        "storage.retention_ms",
        "storage.inline_sync_bytes_max",
        "storage.warm_ahead_bytes",
        "storage.free_bytes_min",
        "broker.lag_bytes_max",
        "cluster.shard",  # the first shard
        "broker.lag_ms_max",
        "storage.dispatch_reserve_bytes",
        "dispatch.dead_letter_attempts",  # no dead letters
        "dispatch.outcome_flush_ms",
        "broker.cache_bytes_max",
        "groups.nodes.weight",  # the node is drained
        "broker.redelivery_first_ms",
        "broker.redelivery_bytes_max",  # all redeliveries wait in their place
        "broker.retention_ms",
        "transactions.checks_max",  # the policy decides without a check-back
        "shutdown_timeout_ms",
        "stall_log_ms",
    }
)

SECRETS: Final = frozenset({"listen.server_secret"})
"""Keys whose values are never shown."""

LISTS: Final = frozenset({"listen.hosts", "listen.announced", "http.hosts"})
"""Lists that may be empty; their entries may not."""

EMPTY_ALLOWED: Final = frozenset(
    {
        *LISTS,
        "listen.server_secret",
        "listen.server_secret_file",
        "http.allowed_hosts",
        "log.audit_file",
        "tls.certificate",
        "tls.key",
        "tls.client_ca",
        "tls.node_ca",
        "cluster.password_file",
    }
)

SERVER_SECRET_LENGTH_MIN: Final = 16

MINIMA: Final = {
    "storage.open_files_max": 9,  # dispatch_log has eight of them, schedule_log the rest
}

MAXIMA: Final = {
    "storage.message_log_segment_bytes": 1 << 36,  # more than a file system may allocate for a file is no segment
    "storage.dispatch_reserve_bytes": 1 << 36,
    "broker.segment_bytes": 1 << 36,
    "wheel.slots": 1 << 20,  # a list of pointers: 8 MiB for each group
    "listen.port": 65_535,
    "http.port": 65_535,
    "listen.frame_bytes_max": U32_MAX,  # the frame's length is a u32
    "message.body_bytes_max": U32_MAX,  # so are the length columns
    "message.subject_bytes_max": 255,  # the protocol's bound
    "message.message_id_bytes_max": 255,
    "message.names_of_token_percent": 100,
    "storage.window_ms": DAY_MS,
    "broker.redelivery_cap_ms": 30 * DAY_MS,
    "transactions.checks_max": 1000,  # `CHECKS_MAX` of a prepare
}


class ConfigError(Exception):
    """The operator's file or a flag has an invalid key or value. The message names the key and its valid values."""


def load_settings(path: str | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the defaults, then the file, then ``flags`` (full key → value as TOML would give it).

    Raises `ConfigError`.
    """
    origin = path or "command line"
    tree = parse_text(path, text_of(path)) if path is not None else {}
    try:
        settings = settings_of(tree)
        origin = "command line"
        for key, value in (flags or {}).items():
            settings = with_flag(settings, key, value)
        origin = path or origin
        settings = with_secret(settings)
        check_settings(settings)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    return settings


def text_of(path: str) -> str:
    """The text of a file. Raises `ConfigError`."""
    try:
        return _read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except ValueError as error:  # a path with a zero byte
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _read(path: str) -> str:
    """The text of a file. Raises OSError, ValueError. A device that never ends is read up to a bound."""
    with Path(path).open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data.decode()


def parse_text(path: str, text: str) -> dict[str, Any]:
    """The tables of a file. Raises `ConfigError`."""
    try:
        return _loaded(text)
    except ValueError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _loaded(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError, also for what is valid TOML and beyond the parser: a number of thousands of
    digits, thousands of brackets within each other."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"more than {DEPTH_MAX} tables or lists within each other") from None
    values, depth = list(tree.values()), 1
    while values := [inner for value in values for inner in _inner(value)]:
        depth += 1
        if depth > DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} tables or lists within each other")
    return tree


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def settings_of(tree: Mapping[str, Any]) -> Settings:
    """Settings from the tables of a file, each value checked alone. Raises `ConfigError`."""
    settings: Settings = read_table(Settings, dict(tree), "")
    return settings


def parse_assignment(text: str) -> tuple[str, Any]:
    """``storage.window_ms=30s`` as key and TOML value. A bare word is a text. Raises `ConfigError`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"{text!r} is no setting: write KEY=VALUE, such as storage.durability=os")
    try:
        tree = _loaded(f"value = {value}")
    except ValueError:
        tree = {}
    # A second line is no setting of its own: what would be ignored is part of the text.
    return key.strip(), tree["value"] if tree.keys() == {"value"} else value.strip()


def check_settings(settings: Settings) -> None:
    """Check values that are valid alone and may be invalid together. Raises `ConfigError`."""
    tls = settings.tls
    if bool(tls.certificate) != bool(tls.key):
        raise ConfigError("tls.certificate and tls.key: give both, or neither")
    if tls.client_ca and not tls.certificate:
        raise ConfigError(
            "tls.client_ca: only an encrypted port can ask for certificates; give tls.certificate and tls.key"
        )
    if settings.http.port and settings.http.port == settings.listen.port:
        shared = set(settings.http.all_hosts) & set(settings.listen.all_hosts)
        if shared:
            raise ConfigError(
                f"http.port = {settings.http.port} is listen.port too, and both on {min(shared)}: give one another port"
            )
    announced, hosts = settings.listen.announced, settings.listen.all_hosts
    if len(announced) not in (0, 1, len(hosts)):
        raise ConfigError(
            f"listen.announced: {len(announced)} addresses for {len(hosts)} hosts; give one for all, or one for each"
        )
    group_names = [group.name for group in settings.groups]
    for name in group_names:
        if group_names.count(name) > 1:
            raise ConfigError(f"groups.name: {name!r} is defined twice, every group needs a name of its own")
    for group in settings.groups:
        addresses = [node.address for node in group.nodes]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ConfigError(
                    f"groups.nodes: {group.name!r} has {address!r} twice, give it a larger weight instead"
                )
        if not any(node.weight for node in group.nodes):
            raise ConfigError(
                f"groups.nodes.weight: all nodes of {group.name!r} have the weight 0, one must take messages"
            )
        _check_alike(group)
    _check_options(settings.groups)
    for route in settings.routes:
        for name in route.groups:
            if name not in group_names and settings.routes == Settings().routes:
                raise ConfigError(f"groups without routes: the default route leads to {name!r}, write [[routes]] too")
            if name not in group_names:
                raise ConfigError(f"routes.groups: unknown group {name!r}{_nearest(name, group_names)}")
    for smaller, larger in (
        ("dispatch.backoff_ms_min", "dispatch.backoff_ms_max"),
        ("broker.redelivery_first_ms", "broker.redelivery_cap_ms"),
        ("message.body_bytes_max", "listen.frame_bytes_max"),
        ("message.properties_bytes_max", "listen.frame_bytes_max"),
        ("listen.frame_bytes_max", "storage.gather_bytes_max"),
        ("wheel.slice_rows", "wheel.rows_max"),
        ("dispatch.batch_messages_max", "dispatch.queue_rows_max"),
        ("transactions.check_after_ms", "message.delay_ms_max"),
    ):
        if _value_of(settings, smaller) > _value_of(settings, larger):
            raise ConfigError(
                f"{smaller} = {_value_of(settings, smaller)} is above {larger} = {_value_of(settings, larger)}: "
                f"lower the one or raise the other"
            )
    windows = -(-settings.wheel.load_ahead_ms // settings.storage.window_ms)
    if windows > WINDOWS_AHEAD_MAX:
        raise ConfigError(
            f"wheel.load_ahead_ms = {settings.wheel.load_ahead_ms} is {windows} windows of storage.window_ms, and the "
            f"loader looks at each in turn: at most {WINDOWS_AHEAD_MAX}"
        )
    try:
        check_window_ms(settings.storage.window_ms)
    except ValueError as error:
        raise ConfigError(f"storage.{error}") from error


def _check_alike(group: GroupSettings) -> None:
    """Nodes of a group replace each other, so a consumer must find the messages of all of them in the same way."""
    first, *others = [(node.address, capabilities_of(node.address, node.options)) for node in group.nodes]
    for address, capabilities in others:
        for name in ("consumable", "keeps_keys"):
            if getattr(capabilities, name) != getattr(first[1], name):
                raise ConfigError(
                    f"groups.nodes: {first[0]} and {address} of {group.name!r} cannot replace each other, because only one "
                    f"of them is `{name}`; give each a group of its own"
                )


def _check_options(groups: tuple[GroupSettings, ...]) -> None:
    """A node has one target, whichever groups share it."""
    known = {node.address: node.options for group in groups for node in group.nodes}
    for group in groups:
        for node in group.nodes:
            if node.options != known[node.address]:
                raise ConfigError(f"groups.nodes.options: {node.address} has other options in another group")


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    """Types of the fields of a dataclass, by name. They are kept: there are few classes, and Python takes long for each."""
    return get_type_hints(kind)


def keys_of(kind: type = Settings, prefix: str = "") -> list[str]:
    """Full names of all keys, in the order of the dataclasses: ``listen.port``, ``groups.nodes.weight``…"""
    keys: list[str] = []
    hints = _types_of(kind)
    for field in dataclasses.fields(kind):
        inner = _table_type(hints[field.name])
        within = keys_of(inner, f"{prefix}{field.name}.") if inner else []
        keys += within or [prefix + field.name]
    return keys


def read_table(kind: type, table: object, prefix: str) -> Any:
    """A dataclass from a table whose keys have this prefix. Raises `ConfigError`."""
    if not isinstance(table, dict):
        raise ConfigError(f"{prefix.rstrip('.')}: expected a table, not {_shown(table)}")
    hints = _types_of(kind)
    for name in table:
        if name not in hints:
            known = [key.removeprefix(prefix).partition(".")[0] for key in keys_of(kind, prefix)]
            raise ConfigError(f"unknown key {prefix + name!r}{_nearest(name, known, prefix)}")
    if kind is NodeSettings:  # the address names the kind of target, which knows its options
        address = _read_text(table.get("address", NodeSettings().address), prefix + "address")
        hints, table = {**hints, "options": kind_of(address).options}, {"options": {}, **table}
    for field in dataclasses.fields(kind):
        if field.name not in table and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{prefix}{field.name} is missing")
    values = {name: _read_value(hints[name], value, prefix + name) for name, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{prefix.rstrip('.')}: {error}") from None


def _read_value(hint: Any, value: object, key: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_table(hint, value, key + ".")
    if get_origin(hint) is tuple:
        return _read_list(get_args(hint)[0], value, key)
    if get_origin(hint) is Mapping:
        return _read_options(value, key)
    if hint is bool:
        return _read_boolean(value, key)
    return _read_integer(value, key) if hint is int else _read_text(value, key)


def _read_boolean(value: object, key: str) -> bool:
    if type(value) is not bool:
        raise ConfigError(f"{key}: expected true or false, not {_shown(value)}")
    return value


def _read_options(value: object, key: str) -> dict[str, Any]:
    """Texts, whole numbers and booleans, under names that another program knows."""
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: expected a table, not {_shown(value)}")
    for name, inner in value.items():
        if type(inner) not in (str, int, bool):
            raise ConfigError(
                f'{key}: "{name}" must be a text, a whole number, true or false, not {_shown(inner)}; '
                "write names that have dots in quotes"
            )
    return dict(value)


def _read_list(item: Any, value: object, key: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or (not value and key not in EMPTY_ALLOWED):
        raise ConfigError(f"{key}: expected a list with at least one entry, not {_shown(value)}")
    if item is str:
        return tuple(_read_text(entry, key) for entry in value)
    # A bare address is a node of weight 1.
    tables = [{"address": entry} if key == "groups.nodes" and isinstance(entry, str) else entry for entry in value]
    return tuple(read_table(item, table, key + ".") for table in tables)


def _read_integer(value: object, key: str) -> int:
    parse, expected = _unit_of(key)
    if isinstance(value, str) and parse is not None:
        try:
            value = parse(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from None
    if type(value) is not int:
        raise ConfigError(f"{key}: expected {expected.rstrip(',')}, not {_shown(value)}")
    minimum, maximum = MINIMA.get(key, 0 if key in ZERO_ALLOWED else 1), MAXIMA.get(key, I64_MAX)
    if not minimum <= value <= maximum:
        bounds = f"from {minimum} to {maximum}" if maximum < I64_MAX else f"of at least {minimum}"
        raise ConfigError(f"{key}: expected {expected} {bounds}, not {_shown(value)}")
    return value


def _read_text(value: object, key: str) -> str:
    if value == "" and key in EMPTY_ALLOWED - LISTS:
        return ""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key}: expected a text that is not empty, not {_shown(value)}")
    if "\0" in value:
        raise ConfigError(f"{key}: expected a text without a zero byte, not {_shown(value)}")
    choices = CHOICES.get(key)
    if choices is not None and value not in choices:
        listed = " or ".join(repr(choice) for choice in choices)
        raise ConfigError(
            f"{key}: expected {listed}, not {_shown(value)}{_nearest(value, choices).partition('; known')[0]}"
        )
    if key == "groups.nodes.address":
        try:
            return read_address(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from None
    if key == "listen.announced":
        try:
            parse_address(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from None
    if key == "listen.server_secret" and len(value) < SERVER_SECRET_LENGTH_MIN:
        raise ConfigError(
            f"{key}: expected at least {SERVER_SECRET_LENGTH_MIN} characters, not {len(value)}: "
            "who listens can try short ones in turn"
        )
    if key == "message.delay_levels":
        try:
            parse_delay_levels(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from None
    if key in ("listen.server_networks", "listen.shared_networks"):
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}; write networks such as '10.1.0.0/16'") from None
    return value


def _unit_of(key: str) -> tuple[Callable[[str], int] | None, str]:
    words = key.rpartition(".")[2].split("_")
    if "ms" in words:
        return parse_duration_ms, "milliseconds as a whole number, or a duration such as '90s' or '2h',"
    if "bytes" in words:
        return parse_size_bytes, "bytes as a whole number, or a size such as '64MiB',"
    return None, "a whole number"


def with_flag(settings: Settings, key: str, value: object) -> Settings:
    """Settings with one key changed, given as TOML would give it. Raises `ConfigError`."""
    known = [name for name in keys_of() if not name.startswith(("groups.", "routes."))]
    if key not in known:
        hint = " (groups and routes are set in the file)" if key.startswith(("groups", "routes")) else ""
        raise ConfigError(f"unknown key {key!r}{hint or _nearest(key, known)}")
    section, _, name = key.rpartition(".")
    part: Any = getattr(settings, section) if section else settings
    kind: type = type(part)
    changed = dataclasses.replace(part, **{name: _read_value(_types_of(kind)[name], value, key)})
    return dataclasses.replace(settings, **{section: changed}) if section else changed


def with_secret(settings: Settings) -> Settings:
    """Settings with the secret of `listen.server_secret_file`, if there is one. Raises `ConfigError`."""
    path = settings.listen.server_secret_file
    if not path:
        return settings
    if settings.listen.server_secret:
        raise ConfigError("listen.server_secret_file: listen.server_secret is set too, give one of them")
    try:
        secret = _read(path).strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"listen.server_secret_file: {path[:PATH_SHOWN_MAX]} cannot be read: {reason}") from None
    return with_flag(settings, "listen.server_secret", secret)


def _table_type(hint: Any) -> type | None:
    inner = get_args(hint)[0] if get_origin(hint) is tuple else hint
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def _value_of(settings: Settings, key: str) -> int:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    number: int = value
    return number


def _nearest(name: str, known: list[str] | tuple[str, ...], prefix: str = "") -> str:
    if not known:  # only a kind of target may have no keys
        return "; this kind of node has no options"
    matches = difflib.get_close_matches(name, known, n=1)
    if matches:
        return f", did you mean {prefix + matches[0]!r}?"
    # A line with sixty names is useless, so a long list shows the sections only.
    names = known if prefix or len(known) <= NAMES_SHOWN_MAX else [key.partition(".")[0] for key in known]
    return f"; known are: {', '.join(dict.fromkeys(prefix + key for key in names))}"


def _shown(value: object) -> str:
    try:
        return repr(value)[:64]
    except ValueError:  # Python writes no number of more digits
        return "a number of thousands of digits"
