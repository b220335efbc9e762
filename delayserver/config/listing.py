"""The effective settings, each with its default and where its value is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from delayserver.config.settings import Settings
from delayserver.config.toml_file import SECRETS, keys_of, load_settings, text_of
from delayserver.config.toml_lines import Path, lines_of

DEFAULT, FILE, FLAG = "default", "file", "--set"
_LISTS = ("groups", "routes")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. `value` and `default` are numbers in the unit of the key, texts, or lists. Of a secret both are None.

    `source`: `default`, `file` or `--set`. `line`: of the file."""

    key: str
    value: Any
    default: Any
    source: str
    line: int | None = None

    @property
    def secret(self) -> bool:
        """Whether the value is not shown."""
        return self.key in SECRETS


def effective_settings(path: str | None, flags: Mapping[str, Any]) -> list[Setting]:
    """All settings in the order of the dataclasses; groups and routes as one list each. Raises `ConfigError`."""
    settings, defaults = load_settings(path, flags), Settings()
    lines = lines_of(text_of(path)) if path is not None else {}
    return list(_settings(settings, defaults, flags, lines))


def _settings(
    settings: Settings, defaults: Settings, flags: Mapping[str, Any], lines: Mapping[Path, int]
) -> Iterator[Setting]:
    keys = dict.fromkeys(key if key.partition(".")[0] not in _LISTS else key.partition(".")[0] for key in keys_of())
    for key in keys:
        line = lines.get(tuple(key.split(".")))
        source = FLAG if key in flags else FILE if line is not None else DEFAULT
        value, default = (None, None) if key in SECRETS else (_plain(settings, key), _plain(defaults, key))
        yield Setting(key, value, default, source, line if source == FILE else None)


def _plain(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return _without_classes(value)


def _without_classes(value: Any) -> Any:
    """Lists and maps. Options that a node does not have, and those that are secret, are left out."""
    if isinstance(value, tuple):
        return [_without_classes(entry) for entry in value]
    if not is_dataclass(value):
        return value
    shown = {field.name: _without_classes(getattr(value, field.name)) for field in fields(value) if field.repr}
    return {name: inner for name, inner in shown.items() if inner != {}}
