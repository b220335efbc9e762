"""Links of documents: which files of the repository they lead to, and the pages of the site that show these files.

Pure: text in, text out. Documents are written so that their links work on a forge, relative to the file that they stand in.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Final

DOCS: Final = "docs/"

PAGES: Final = {
    "PROTOCOL.md": "reference/protocol.md",
    "HTTP.md": "reference/http.md",
    "store/FORMAT.md": "reference/file-format.md",
    "delayserver.sample.toml": "reference/settings.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "VERSIONING.md": "project/versioning.md",
    "CHANGELOG.md": "project/changelog.md",
    "README.md": "project/readme.md",
    "LICENSE": "project/licence.md",
    "ops/RUNBOOK.md": "project/runbook.md",
    "ops/bench/RESULTS.md": "project/figures.md",
    "ops/bench/README.md": "project/bench.md",
    "ops/audit/README.md": "project/audit.md",
    "ops/clients/go/README.md": "reference/go-client.md",
}
"""Pages of the site that show a file of the repository, or are made from it. Other files get a page below `source/`."""

_FENCE: Final = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\])\((?![a-z]+:|#)([^()\s]+)\)|`[^`\n]+`")
_LANGUAGES: Final = {
    "py": "python",
    "toml": "toml",
    "go": "go",
    "json": "json",
    "yaml": "yaml",
    "yml": "yaml",
    "sh": "sh",
}


def page_of(path: str) -> str:
    """The page of the site, below its root, for a file of the repository."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path in PAGES:
        return PAGES[path]
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def target_of(link: str, path: str) -> tuple[str, str]:
    """Where a link in the file `path` leads: the file from the repository's root, and ``#anchor`` or nothing."""
    file, hash_sign, anchor = link.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), file)), hash_sign + anchor


def links(markdown: str) -> list[str]:
    """The relative links of a document, without those in code."""
    found: list[str] = []

    def kept(link: str) -> str:
        found.append(link)
        return link

    _map_links(markdown, kept)
    return found


def with_links_of_the_site(markdown: str, path: str, page: str) -> str:
    """The text of the file `path` with links that work on the `page` of the site."""

    def moved(link: str) -> str:
        file, anchor = target_of(link, path)
        return posixpath.relpath(page_of(file), posixpath.dirname(page) or ".") + anchor

    return _map_links(markdown, moved)


def source_page(path: str, text: str) -> str:
    """A page that shows a file that is no document."""
    language = _LANGUAGES.get(path.rpartition(".")[2], "text")
    return f"# {posixpath.basename(path)}\n\n`{path}` in the repository.\n\n````{language}\n{text.rstrip()}\n````\n"


def _map_links(markdown: str, change: Callable[[str], str]) -> str:
    """The text with each relative link changed. Code stays as it is."""
    parts = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_map_text(markdown[end : fence.start()], change), fence[0]]
        end = fence.end()
    return "".join([*parts, _map_text(markdown[end:], change)])


def _map_text(text: str, change: Callable[[str], str]) -> str:
    return _LINK.sub(lambda found: f"({change(found[1])})" if found[1] else found[0], text)
