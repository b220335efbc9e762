"""No part of the server looks again and again for something that another part could tell it.

A loop that sleeps for a few milliseconds costs the event loop by the number of requests that wait. A mark, a bell or an
event wakes the one that waits. Pauses of 10 ms and more are for work that comes in bursts.
"""

from __future__ import annotations

import ast
from pathlib import Path

SHORTEST_MS = 10
# Clients, and the rooms of the HTTP gateway, are processes of their own.
OTHERS = ("client", "cli", "web", "embedded")
# The door to the clock waits for the last milliseconds itself. The other is a rest between steps of a thread: it waits for
# nothing.
NO_POLLS = {"FINE_WAIT_S", "REST_MS_MIN"}
FACTORS = {"sleep_ms": 1, "sleep": 1000, "move_on_after": 1000}


def constants(tree: ast.Module) -> dict[str, float]:
    """The numbers that a module names, in milliseconds."""
    found: dict[str, float] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            unit = {"MS": 1, "S": 1000}.get(target.id.rpartition("_")[2])
            if unit:
                found[target.id] = value.value * unit
    return found


def pauses(node: ast.Call, named: dict[str, float]) -> list[float]:
    """How long a call may sleep, in milliseconds: a number, or the numbers with names in its argument."""
    factor = FACTORS.get(node.func.attr) if isinstance(node.func, ast.Attribute) else None
    if factor is None or not node.args:
        return []
    argument = node.args[0]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, int | float):
        return [argument.value * factor]
    names = [part.id for part in ast.walk(argument) if isinstance(part, ast.Name)]
    return [named[name] for name in names if name in named and name not in NO_POLLS]


def test_the_server_sleeps_for_no_few_milliseconds() -> None:
    root = Path(__file__).parents[3] / "delayserver"
    found, looked = [], 0
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in OTHERS:
            continue
        tree = ast.parse(path.read_text())
        named = constants(tree)
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            for pause_ms in pauses(call, named):
                looked += 1
                if 0 < pause_ms < SHORTEST_MS:
                    found.append(f"{path.relative_to(root)}:{call.lineno}")
    assert not found and looked >= 20
