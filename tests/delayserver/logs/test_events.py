"""Every event of the program: stable names, fields that fit the sentence, nothing secret."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

import pytest

from delayserver.logs.events import KEYS

ROOT = Path(__file__).parents[3]
LEVELS = {"info", "warning", "error"}
SECRET = {"body", "bodies", "properties", "token", "secret", "password", "authorization", "certificate"}


@dataclass(frozen=True, slots=True)
class Logged:
    """One call of an `EventLogger`."""

    where: str
    level: str
    event: str
    text: str
    fields: frozenset[str]


def text_of(node: ast.expr) -> str:
    """The sentence of a call: literals, also joined, with conditions in between."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return text_of(node.body) + text_of(node.orelse)
    assert isinstance(node, ast.Call) and ast.unparse(node.func) == "held_back_words", ast.unparse(node)
    return ""


def logged() -> Iterator[Logged]:
    for path in sorted((ROOT / "delayserver").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "events." in text else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "events"
            ):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert node.func.attr in LEVELS and isinstance(node.args[0], ast.Constant), where
                names = frozenset(str(each.arg) for each in node.keywords if each.arg != "failure")
                yield Logged(where, node.func.attr, str(node.args[0].value), text_of(node.args[1]), names)


EVENTS = list(logged())


def test_the_log_has_more_than_25_kinds_of_events() -> None:
    assert len({each.event for each in EVENTS}) > 25


def test_only_the_room_of_logs_uses_loggers_of_the_library() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "delayserver").rglob("*.py")
        if "logging.getLogger" in path.read_text() and path.parent.name != "logs"
    ]
    assert found == []


@pytest.mark.parametrize("each", EVENTS, ids=lambda each: f"{each.event}-{each.where}")
def test_an_event_has_a_stable_name_and_fields_that_its_sentence_may_use(each: Logged) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", each.event)
    assert {name for _, name, _, _ in Formatter().parse(each.text) if name} <= each.fields
    assert not each.fields & {*KEYS, *SECRET}
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in each.fields)


def test_each_name_of_an_event_has_one_level() -> None:
    levels: dict[str, set[str]] = {}
    for each in EVENTS:
        levels.setdefault(each.event, set()).add(each.level)
    assert {event for event, found in levels.items() if len(found) > 1} == set()
