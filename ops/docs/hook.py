"""The hook of MkDocs (`hooks` in mkdocs.yml): pages from files of the repository, and the parts that are made from the code.

The site shows nothing that is committed twice: a page such as the wire protocol is the file PROTOCOL.md, read at build time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from ops.docs.reference_pages import with_parts
from ops.docs.repository_links import DOCS, PAGES, links, page_of, source_page, target_of, with_links_of_the_site

# MkDocs loads this file from the checkout, also where the packages are installed elsewhere.
ROOT: Final = Path(__file__).parents[2]

# Pages that stand alone in their tab, so that a menu beside them would have one entry.
WITHOUT_MENU: Final = {"index.md", "tutorial.md"}

# A fence whose language has a name behind it, as those of PROTOCOL.md. Markdown on the site opens no such fence. Options
# such as `title="shop.py"` are its own.
_NAMED_FENCE: Final = re.compile(r"^(```\w+) [^\n=]+$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages for the files of the repository that documents link to, and for those that these link to."""
    made: dict[str, str] = {}
    waiting = [f"{DOCS}{file.src_uri}" for file in files.documentation_pages()]
    waiting += [path for path in PAGES if path.endswith(".md")]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        text = (ROOT / path).read_text()
        page = page_of(path)
        if not path.startswith(DOCS) and files.get_file_from_path(page) is None:
            made[page] = path
        if path.endswith(".md"):
            found = {target_of(link, path)[0] for link in links(text)}
            new = {target for target in found if (ROOT / target).is_file() and not _is_asset(target)} - seen
            seen |= new
            waiting += new
    for page, path in made.items():
        text = (ROOT / path).read_text()
        if path.endswith(".md"):
            shown = _NAMED_FENCE.sub(r"\1", with_links_of_the_site(text, path, page))
        else:
            shown = source_page(path, text)
        files.append(File.generated(config, page, content=shown))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """The document of a page below docs/ with its made parts, and with links that work on the site."""
    if page.file.generated_by:
        return markdown
    uri = page.file.src_uri
    if uri in WITHOUT_MENU:
        # Front matter in the document would be shown as a table on a forge.
        page.meta["hide"] = ["navigation"]
    return with_parts(with_links_of_the_site(markdown, f"{DOCS}{uri}", uri), ROOT)


def _is_asset(path: str) -> bool:
    return path.startswith(DOCS) and not path.endswith(".md")
