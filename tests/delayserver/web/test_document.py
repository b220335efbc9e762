"""HTTP.md names every error that the gateway makes by itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from delayserver.protocol.errors import ERRORS
from tests.delayserver.web.web_server import ROOT


def made() -> Iterator[str]:
    """The names of errors in the code of the gateway."""
    for path in sorted((ROOT / "delayserver" / "web").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                name = node.args[1]
                if isinstance(name, ast.Constant):
                    yield str(name.value)


def test_the_document_names_each_error_of_the_gateway() -> None:
    text = (ROOT / "HTTP.md").read_text().partition("## Errors")[2].partition("## Bounds")[0]
    own = set(made()) - set(ERRORS)
    assert len(own) > 5
    assert own - set(re.findall(r"`(\w+)`", text)) == set()
