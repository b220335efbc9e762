"""The site builds strictly, loads nothing from another host, and its reference has all that the code has."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from delayserver.cli import cli
from delayserver.protocol.errors import ERRORS
from ops.docs.reference_pages import settings_of, with_parts
from ops.docs.repository_links import links, page_of, target_of, with_links_of_the_site
from ops.docs.request_pages import endpoints, fields_of, section_of

if os.environ.get("CI", "").lower() not in ("1", "true", "yes"):
    pytest.importorskip("mkdocs", reason="install the extra docs")

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
CONFIGURATION = (ROOT / "mkdocs.yml").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: the one that `.ci/run` has built from the same files, or a new one."""
    if built := os.environ.get("BUILT_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    # With --quiet, MkDocs counts no warnings, and --strict does nothing.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    """What a reader sees of a page."""
    article = re.search(r"<article.*?</article>", (site / page / "index.html").read_text(), re.DOTALL)
    assert article is not None
    return html.unescape(re.sub(r"<[^>]+>", "", article[0]))


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?https?:|<link[^>]*\shref=["']?https?:|url\(["']?https?:"""
    )
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 20
    assert [(path.name, found[0]) for path in pages for found in loads.finditer(path.read_text())] == []


def names_of_commands(group: click.Group, context: click.Context) -> list[str]:
    names = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        names += [inner.command_path, *(names_of_commands(command, inner) if isinstance(command, click.Group) else [])]
    return names


def test_every_command_is_in_the_reference(site: Path) -> None:
    page = text_of(site, "reference/commands")
    names = names_of_commands(cli, click.Context(cli, info_name="delayserver"))
    assert "delayserver recover trace" in names
    assert [name for name in names if f"{name} [OPTIONS]" not in page] == []


def test_every_setting_is_in_the_reference(site: Path) -> None:
    page = text_of(site, "reference/settings")
    sample = tomllib.loads((ROOT / "delayserver.sample.toml").read_text())
    names = [f"{table}.{name}" for table, values in sample.items() if isinstance(values, dict) for name in values]
    assert len(names) > 50
    assert [name for name in names if name not in page] == []


def test_every_error_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "errors" / "index.html").read_text()
    assert [name for name in ERRORS if f'id="{name}"' not in page] == []


def test_every_http_request_is_in_the_reference(site: Path) -> None:
    page = text_of(site, "reference/http-requests")
    requests = [f"{each.method} {each.path}" for each in endpoints()]
    assert "POST /v1/messages" in requests
    assert [request for request in requests if request not in page] == []


def test_a_request_shows_its_fields() -> None:
    (send,) = [each for each in endpoints() if (each.method, each.path) == ("POST", "/v1/messages")]
    rows = {name: needed for name, _, needed in fields_of(send.body)}
    assert (rows["`subject`"], rows["`tag`"]) == ("yes", "")
    assert "| 201 | The message is on disk | `receipt`, `message_id`" in section_of(send)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("reference/protocol", "What a client must do"),
        ("reference/file-format", "What is assumed of the disk"),
        ("reference/python-client", "The cancel is durable on return"),
        ("project/runbook", "The first command, always"),
        ("source/ops/examples/outbox.py", "CREATE TABLE IF NOT EXISTS orders"),
    ],
)
def test_documents_of_the_repository_are_pages(site: Path, page: str, text: str) -> None:
    assert text in text_of(site, page)


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ("PROTOCOL.md", "reference/protocol"),
        ("docs/reference/protocol-operators.md", "reference/protocol-operators"),
    ],
)
def test_a_page_of_the_protocol_has_all_of_its_source(site: Path, document: str, shown: str) -> None:
    source = re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    page = (site / shown / "index.html").read_text()
    tables = len(re.findall(r"^\|[-|]+\|$", source, re.MULTILINE))
    assert tables >= 20
    assert page.count("<table>") == tables
    assert re.findall(r"<h([1-6]) ", page) == [str(len(signs)) for signs in re.findall(r"^(#+) ", source, re.MULTILINE)]
    assert "```" not in text_of(site, shown)


@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.relative_to(ROOT).as_posix() for path in DOCUMENTS])
def test_links_work_on_a_forge(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    targets = [target_of(link, name)[0] for link in links(path.read_text())]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_document_is_in_the_navigation() -> None:
    assert [
        path.name for path in DOCUMENTS if f" {page_of(path.relative_to(ROOT).as_posix())}" not in CONFIGURATION
    ] == []


def test_links_of_a_document_become_those_of_the_site() -> None:
    document = (
        "[a](../../PROTOCOL.md#errors) [b](run.md) `[c](d.md)` [e](https://f) [g](../../ops/x.py)\n"
        "[`j`](../../k.md) `l`\n"
        "```\n[h](i.md)\n```\n"
    )
    assert with_links_of_the_site(document, "docs/how-to/nodes.md", "how-to/nodes.md") == (
        "[a](../reference/protocol.md#errors) [b](run.md) `[c](d.md)` [e](https://f) [g](../source/ops/x.py.md)\n"
        "[`j`](../source/k.md) `l`\n"
        "```\n[h](i.md)\n```\n"
    )


def test_a_setting_has_the_comment_above_it() -> None:
    made = settings_of("# title\n\n# Of a table.\n[listen]\n\n# Why\n# so.\nport = 1\n")
    assert "Of a table." in made
    assert "| `listen.port` | `1` | Why so. |" in made


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(KeyError):
        with_parts("<!-- made: nothing -->", ROOT)
