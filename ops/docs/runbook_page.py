"""Makes the runbook that the console shows, from ops/RUNBOOK.md: `python -m ops.docs.runbook_page`.

A gateway serves it, so alerts of the console lead to the runbook of the same version, without a network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import markdown

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "delayserver" / "web" / "console" / "runbook.html"

_PAGE: Final = """<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Runbook of delayserver</title>
<!-- Made from ops/RUNBOOK.md by python -m ops.docs.runbook_page. -->
<link rel="icon" href="/console/icon.svg" type="image/svg+xml">
<script src="/console/theme.js"></script>
<link rel="stylesheet" href="/console/style.css">
</head>
<body>
<header class="topbar">
<a class="brand" href="/">delayserver</a>
<div class="tools"><button type="button" class="small" id="theme">Colours</button></div>
</header>
<main class="book-page">
BODY
</main>
</body>
</html>
"""


def runbook_page(text: str) -> str:
    """The page of a runbook in Markdown. A link to another file becomes text, since a gateway does not serve the file."""
    body = markdown.markdown(text, extensions=["tables", "fenced_code", "toc", "sane_lists"], output_format="html")
    body = re.sub(r'<a href="(?!#|https?:)[^"]*">(.*?)</a>', r"\1", body, flags=re.DOTALL)
    body = body.replace("<pre>", '<pre tabindex="0">')
    return _PAGE.replace("BODY", body)


if __name__ == "__main__":
    PAGE.write_text(runbook_page((ROOT / "ops" / "RUNBOOK.md").read_text()))
