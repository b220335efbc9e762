"""A sentence of a document has at most 25 words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# All documents but ops/bench/RESULTS.md, which is a record of days that have passed.
DOCUMENTS = [
    *(
        ROOT / f"{name}.md"
        for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "HTTP", "PROTOCOL", "README", "VERSIONING")
    ),
    ROOT / "delayserver.sample.toml",
    ROOT / "ops" / "RUNBOOK.md",
    ROOT / "store" / "FORMAT.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "ops").rglob("README.md")),
    *sorted((ROOT / "tests").rglob("README.md")),
]
WORDS_MAX = 25

# Blocks in fences, blocks after an empty line that stand four characters in, and comments of HTML.
NO_PROSE = re.compile(r"```.*?```|<!--.*?-->|(?<=\n\n)( {4}(?![-*] )[^\n]*\n)+", re.DOTALL)


def prose(path: Path) -> str:
    """The text of a document, or the comments of a file of settings."""
    text = path.read_text()
    if path.suffix == ".toml":
        return "\n".join(line[2:] if line.startswith("#") else "" for line in text.splitlines())
    return text


def sentences(text: str) -> list[str]:
    """All sentences outside of blocks of code: of paragraphs, list items and table cells."""
    blocks = [""]
    for line in NO_PROSE.sub("", text).splitlines():
        if line.startswith("|"):
            blocks += [*line.strip("|").split("|"), ""]
        elif not line.strip() or re.match(r"\s*([*-]|\d+\.) |#", line):
            blocks += [line]
        else:
            blocks[-1] += f" {line.strip()}"
    return [sentence for block in blocks for sentence in re.split(r"(?<=[.?!])[*)\"]* +", block)]


def words(sentence: str) -> int:
    """A name in code counts as one word, a link as its text."""
    named = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", sentence))
    return len(re.findall(r"\S*\w\S*", named))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_sentence_has_at_most_25_words(path: Path) -> None:
    assert [sentence for sentence in sentences(prose(path)) if words(sentence) > WORDS_MAX] == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("One two. Three four five.", [2, 3]),
        ("**One two.** Three.", [2, 1]),
        ("- One two\n  three\n- four", [3, 1]),
        ("| one two | three |", [2, 1]),
        ("One `two three`, `four` [five](six seven.md).", [4]),
        ("One.\n\n    two three\n\nFour five.\n```\nsix\n```\n<!-- seven -->", [1, 2]),
    ],
)
def test_words_are_counted_by_sentence(text: str, counts: list[int]) -> None:
    assert [words(sentence) for sentence in sentences(text) if words(sentence)] == counts
