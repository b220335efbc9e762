"""The examples of a document, found by Sybil, and how each kind of block is run.

| block | what happens |
|---|---|
| `console` | each line behind ``$ `` runs; the lines below it are its output |
| `sh` | the block runs |
| `python` | the block runs, behind those before it |
| any, with ``title="name"`` | the file is written, and runs only if a command names it |
| `output` | what the block before it has printed |
| `toml` | parses |

An HTML comment ``<!--- skip: next "reason" -->`` leaves a block out.
Readers do not see a block ``<!--- hidden: python … -->``.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from unittest import SkipTest

from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

from tests.docs.shapes import match
from tests.docs.terminal import STEP_SECONDS_MAX, StepFailed, Terminal

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Languages of blocks that show something, and do nothing.
SHOWN: Final = {"text", "json", "yaml", "ini", "promql", "sql", "go", "javascript", "http", "dockerfile"}

_INFO: Final = re.compile(r'(?P<language>\w+)(?: title="(?P<title>[^"]+)")?[ \t]*$\n', re.MULTILINE)
_FENCED: Final = RawFencedCodeBlockLexer(_INFO)
_HIDDEN: Final = DirectiveInHTMLCommentLexer("hidden")
# What the server counts a moment after its clients know it: a reader looks again.
_LOOKS: Final = re.compile(r"delayserver status\b")
# Programs that say when they are ready, and that a block starts in the background.
_SERVES: Final = re.compile(r"^delayserver (?:serve|broker)\b.*&$", re.MULTILINE)


class Reader:
    """Does in a terminal what a document says, block by block, and remembers what the output of each was."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.skipped: list[str] = []
        # What was printed since the last block of output.
        self._output = ""
        self._from_shell = False
        self._values: dict[str, str] = {}

    def read(self, path: Path) -> int:
        """Runs all examples of a document, and returns their number. Raises `StepFailed` with the line that fails."""
        count = 0
        for example in Sybil([self._blocks, self._hidden, SkipParser()]).parse(path).examples():
            try:
                example.evaluate()
                count += 1
            except SkipTest as reason:
                self.skipped.append(str(reason))
            except StepFailed as error:
                raise StepFailed(f"{path.relative_to(ROOT)}:{example.line}: {error}") from None
        return count

    def _blocks(self, document: Document) -> Iterable[Region]:
        for region in _FENCED(document):
            if region.lexemes["title"] is not None or region.lexemes["language"] not in SHOWN:
                yield Region(region.start, region.end, region.lexemes, self._evaluate)

    def _hidden(self, document: Document) -> Iterable[Region]:
        for region in _HIDDEN(document):
            lexemes = {
                "language": region.lexemes["arguments"].strip(),
                "title": None,
                "source": region.lexemes["source"],
            }
            yield Region(region.start, region.end, lexemes, self._evaluate)

    def _evaluate(self, example: Example) -> None:
        language, title, source = (example.parsed[name] for name in ("language", "title", "source"))
        text = str(source)
        if title is not None:
            self.terminal.save(title, text)
        elif language == "console":
            self._session(text)
        elif language == "sh":
            before = self._shell(self._with_values(text))
            if _SERVES.search(text):
                self._expect("\n".join(["... ready on ..."] * len(_SERVES.findall(text))), before)
        elif language == "python":
            # Line numbers of a traceback are those of the document.
            padding = "\n" * (example.line + source.line_offset)
            self._output = self.terminal.execute(padding + self._with_values(text), example.path)
            self._from_shell = False
        elif language == "output":
            self._expect(text, 0)
            self._output = ""
        elif language == "toml":
            tomllib.loads(text)
        else:
            raise StepFailed(f"there is no way to run a block of {language!r}: see tests/docs/documents.py")

    def _session(self, text: str) -> None:
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE):
            if step.strip():
                command, _, shown = step.partition("\n")
                while command.endswith("\\"):
                    more, _, shown = shown.partition("\n")
                    command += "\n" + more.removeprefix("> ")
                before = self._shell(self._with_values(command))
                deadline = time.monotonic() + STEP_SECONDS_MAX / 2
                while _LOOKS.match(command) and time.monotonic() < deadline and not self._has(shown, before):
                    before = self._shell(self._with_values(command))
                self._expect(shown, before)

    def _shell(self, commands: str) -> int:
        """Runs commands, and returns how much output there was before."""
        if not self._from_shell:
            self._output = ""
        self._from_shell = True
        before = len(self._output)
        self._output += self.terminal.run(commands)
        return before

    def _has(self, shown: str, start: int) -> bool:
        return not isinstance(match(self._with_values(shown), self._output[start:]), str)

    def _expect(self, shown: str, start: int) -> None:
        """Waits until the output, from `start` on, has the lines that the document shows."""
        deadline = time.monotonic() + STEP_SECONDS_MAX / 2
        while isinstance(found := match(self._with_values(shown), self._output[start:]), str):
            if not self._from_shell or time.monotonic() > deadline:
                raise StepFailed(f"the output lacks the line\n    {found}\nThe output is\n{self._output[start:]}")
            self._output += self.terminal.more_output(0.5)
        self._values |= found

    def _with_values(self, text: str) -> str:
        """The text with the ids of this run in place of those that the document shows."""
        for shown, value in self._values.items():
            text = text.replace(shown, value)
        return text
