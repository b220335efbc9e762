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


def test_the_server_sleeps_for_no_few_milliseconds() -> None:
    root = Path(__file__).parents[3] / "delayserver"
    found, looked = [], 0
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in OTHERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            factor = {"sleep_ms": 1, "sleep": 1000}.get(node.func.attr)
            pause = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if factor and isinstance(pause, int | float):
                looked += 1
                if 0 < pause * factor < SHORTEST_MS:
                    found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not found and looked >= 5
