"""ARCHITECTURE.md names parts of the code: rooms, files, classes and the receivers of calls. All of them exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("delayserver", "store", "wheel", "ops", "tests")
# Names of Python and of its libraries.
FOREIGN = {"random.Random"}

IN_CODE = re.compile(r"`([^`]+)`")
RECEIVER = re.compile(r"[A-Z]\w*\.\w+")
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
PLACE = re.compile(r"[\w.]+(?:/[\w.]*)+|\w+\.py")


@cache
def classes() -> dict[str, tuple[set[str], set[str]]]:
    """Classes by name: what those of the name define, and their bases. And names of modules, with neither."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for path in (path for package in PACKAGES[:-1] for path in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                own, bases = found.setdefault(node.name, (set(), set()))
                own.update(_names_in(node))
                bases.update(_plain(base) for base in node.bases)
            for name in _assigned(node):
                found.setdefault(name, (set(), set()))
    return found


def members(name: str) -> set[str]:
    """The names that a class or a base of it defines."""
    own, bases = classes().get(name, (set(), set()))
    return own.union(*(members(base) for base in bases - {name}))


def _plain(base: ast.expr) -> str:
    """The name of a class without its type arguments."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def _names_in(made: ast.ClassDef) -> Iterator[str]:
    for node in made.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        yield from _assigned(node)
    for inner in ast.walk(made):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr


def _assigned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def is_there(name: str) -> bool:
    """Whether the code has this receiver of a call, class or place. True for a text that is none of these."""
    if name in FOREIGN:
        return True
    if RECEIVER.fullmatch(name):
        owner, _, attribute = name.partition(".")
        return attribute in members(owner)
    if CLASS.fullmatch(name):
        return name in classes()
    if PLACE.fullmatch(name):
        return (ROOT / name).exists() or any(any((ROOT / package).rglob(name)) for package in PACKAGES)
    return True


def named(text: str) -> list[str]:
    """The texts in code of a document, outside of blocks."""
    return IN_CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def test_every_receiver_class_and_file_of_the_architecture_exists() -> None:
    names = named((ROOT / "ARCHITECTURE.md").read_text())
    assert sum(bool(RECEIVER.fullmatch(name)) for name in names) > 60
    assert sorted({name for name in names if not is_there(name)}) == []


@pytest.mark.parametrize("name", ["GroupCommit.gone", "GoneAway", "GoneAway.run", "store/gone.py", "gone.py"])
def test_a_name_that_the_code_does_not_have_is_found(name: str) -> None:
    assert not is_there(name)


def test_the_architecture_is_short_enough_to_be_read_at_once() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 25 * 1024
