"""`delayserver schedule` against a server: what programs and people read."""

from __future__ import annotations

from typing import Any

BERLIN = ("--zone", "Europe/Berlin", "--subject", "reports")


def test_a_schedule_is_made_shown_and_deleted(server: Any) -> None:
    assert server.run("schedule", "list").out == "there are no schedules\n"
    made = server.run("schedule", "create", "daily", "--cron", "0 9 * * 1-5", *BERLIN, "report", "--json").row
    assert (made["name"], made["state"], made["changed"], made["fired"]) == ("daily", "active", True, 0)
    again = server.run("schedule", "create", "daily", "--cron", "0 9 * * 1-5", *BERLIN, "report", "--json").row
    assert again == made | {"changed": False}
    shown = server.run("schedule", "show", "daily", "--json").row
    assert shown["definition"] == {
        "subject": "reports", "body": "report", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin",
    }  # fmt: skip
    firings = server.run("schedule", "next", "daily", "--count", "2", "--json").rows
    assert firings[0] == {"due_ms": made["next_ms"], "moment_ms": made["next_ms"]}
    assert len(server.run("schedule", "next", "daily", "--count", "2").out.splitlines()) == 2
    assert server.run("schedule", "list", "--json").row["definition"] == {
        "subject": "reports", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin",
    }  # fmt: skip
    assert server.run("schedule", "delete", "daily").out == ""
    gone = server.run("schedule", "show", "daily")
    assert (gone.code, "there is no schedule 'daily'" in gone.err) == (1, True)


def test_people_read_a_table(server: Any) -> None:
    server.run("schedule", "create", "poll", "--every", "90m", "--subject", "polls", "x")
    heading, line = server.run("schedule", "pause", "poll").out.splitlines()
    assert heading.split() == ["NAME", "STATE", "NEXT", "FIRED", "SUBJECT", "WHEN"]
    assert line.split() == ["poll", "paused", "-", "0", "polls", "every", "1", "h", "30", "m"]
    nothing = server.run("schedule", "next", "poll")
    assert (nothing.code, nothing.out) == (1, "poll fires no more, or is paused\n")
    assert server.run("schedule", "resume", "poll", "--json").row["state"] == "active"


def test_a_run_and_the_firings_come_to_consumers(server: Any) -> None:
    server.run(
        "schedule", "create", "tick", "--every", "1s", "--times", "2", "--template", "--property", "a=b",
        "--subject", "ticks", "${name} ${run}",
    )  # fmt: skip
    sent = server.run("schedule", "run", "tick", "--json").row
    rows: list[dict[str, Any]] = []
    while len(rows) < 2:
        rows += server.run("pull", "ticks", "--group", "g", "--wait", "20s", "--json").rows
    assert [row["body"] for row in rows] == ["tick 1", "tick 2"]
    assert rows[0]["message_id"] == sent["message_id"]
    assert (rows[1]["properties"]["a"], rows[1]["properties"]["schedule"]) == ("b", "tick")


def test_bad_input_is_named(server: Any) -> None:
    both = server.run("schedule", "next", "x", "--every", "1s")
    assert (both.code, "a schedule or a rule, not both" in both.err) == (2, True)
    none = server.run("schedule", "create", "x", "--subject", "s", "b")
    assert (none.code, "say when" in none.err) == (2, True)
    never = server.run("schedule", "create", "x", "--cron", "0 0 31 2 *", "--subject", "s", "b")
    assert (never.code, "invalid_argument: cron: " in never.err) == (1, True)
