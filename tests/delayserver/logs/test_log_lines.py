"""Log lines: one line is one event, whatever is in it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from delayserver.logs.events import EventLogger
from delayserver.logs.log_lines import TEXT_MAX, JsonLines, TextLines

events = EventLogger("delayserver.test")


def logged(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    (record,) = caplog.records
    return record


def as_json(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    line = JsonLines().format(logged(caplog))
    assert "\n" not in line and line.isascii()
    value: dict[str, Any] = json.loads(line)
    return value


def test_a_json_line_has_the_event_its_fields_and_the_sentence(caplog: pytest.LogCaptureFixture) -> None:
    events.warning("node_down", "broker node {node} counts as down", node="n:1", failures=5)
    line = as_json(caplog)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "event": "node_down",
        "message": "broker node n:1 counts as down",
        "logger": "delayserver.test",
        "node": "n:1",
        "failures": 5,
    }


def test_a_text_line_has_the_sentence_and_the_fields_that_it_does_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    events.warning("node_down", "broker node {node} counts as down", node="n:1", failures=5)
    line = TextLines(colours=False).format(logged(caplog))
    assert line[24:] == "WARNING broker node n:1 counts as down [node_down failures=5]"


def test_the_line_names_the_place_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    events.warning("here", "here")
    assert logged(caplog).pathname == __file__


@pytest.mark.parametrize("hostile", ["a\nERROR forged", "\x1b[2J", "\u2028x", "\x00", "{braces} %s"])
def test_text_of_a_client_stays_in_its_log_line_and_controls_no_terminal(
    caplog: pytest.LogCaptureFixture, hostile: str
) -> None:
    events.error("request_bug", "bug while answering {operation}", ValueError(hostile), operation=hostile, more=hostile)
    line = as_json(caplog)
    assert (line["operation"], line["message"]) == (hostile, f"bug while answering {hostile}")
    text = TextLines(colours=True).format(logged(caplog))
    first, *others = text.split("\n")
    assert "[request_bug" in first and {line[:4] for line in others} == {"    "}
    painted = text.replace("\x1b[31m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert painted.replace("\n", "").isprintable()


def test_a_failure_comes_with_its_kind_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    events.error("request_bug", "bug", KeyError("no such thing"))
    line = as_json(caplog)
    assert line["error"] == "KeyError"
    assert line["traceback"] == "KeyError: 'no such thing'"


def test_a_line_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    events.warning("long", "long: {text}", text="a" * 10 * TEXT_MAX)
    assert len(JsonLines().format(logged(caplog))) < 3 * TEXT_MAX
    assert len(TextLines(colours=False).format(logged(caplog))) < 3 * TEXT_MAX


def test_a_line_of_a_library_has_the_name_of_its_logger_as_event(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("uvicorn.error").warning("closed %d", 3)
    line = as_json(caplog)
    assert (line["event"], line["message"]) == ("uvicorn.error", "closed 3")
    assert TextLines(colours=False).format(logged(caplog)).endswith("closed 3 [uvicorn.error]")
