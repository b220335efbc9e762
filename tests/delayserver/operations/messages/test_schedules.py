"""Schedules: each moment of a rule gives one message, also over crashes and steps of the clock."""

from __future__ import annotations

from typing import Any

import pytest

from tests.delayserver.operations.messages.test_transactions import findings_of
from tests.fakes.host import DATA_DIR, Boot, Client, small_settings, texts

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


async def act(client: Client, action: str, name: str = "s", **rest: Any) -> dict[str, Any]:
    """A request about a schedule."""
    return await client.request("schedule", {"action": action, "name": name} | rest)


async def put(client: Client, name: str = "s", **rest: Any) -> dict[str, Any]:
    """Make a schedule of the subject `s`."""
    return await act(client, "put", name, **({"subject": "s", "body": b"b", "every_ms": 1_000} | rest))


def moments(messages: list[dict[str, Any]]) -> list[int]:
    """The moments of messages of schedules."""
    return [int(each["properties"]["schedule_moment_ms"]) for each in messages]


async def test_each_moment_gives_one_message_and_the_schedule_keeps_one_timer(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 500
    made = await put(client, start_ms=start_ms)
    assert (made["changed"], made["state"], made["next_ms"]) == (True, "active", start_ms)
    await host.sleep_ms(10_000)
    messages = await client.pull()
    assert moments(messages) == [start_ms + 1_000 * each for each in range(10)]
    generation = made["generation"]
    assert [each["message_id"] for each in messages] == [f"s:{generation}:{each}" for each in moments(messages)]
    assert [each["due_ms"] for each in messages] == moments(messages)
    shown = await act(client, "show")
    assert (shown["fired"], shown["next_ms"]) == (10, start_ms + 10_000)
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["delivered"]) == (10, 10)
    assert len(host.server.parts.state.schedules) == 1


async def test_a_pause_leaves_moments_out_and_a_resume_goes_on(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 500
    await put(client, start_ms=start_ms)
    await host.sleep_ms(2_000)
    paused = await act(client, "pause")
    assert (paused["state"], paused["next_ms"], paused["changed"]) == ("paused", 0, True)
    assert (await act(client, "pause"))["changed"] is False
    await host.sleep_ms(5_000)
    assert moments(await client.pull()) == [start_ms, start_ms + 1_000]
    assert (await act(client, "next"))["firings"] == []
    resumed = await act(client, "resume")
    assert (resumed["state"], resumed["next_ms"]) == ("active", start_ms + 7_000)
    assert resumed["generation"] == paused["generation"]
    await host.sleep_ms(1_000)
    assert moments(await client.pull()) == [start_ms + 7_000]
    await host.balanced(pending=0)


async def test_nothing_fires_behind_the_answer_to_a_delete(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    first = await put(client)
    await host.sleep_ms(1_500)
    assert await act(client, "delete") == {"name": "s"}
    before = await client.pull()
    await host.sleep_ms(5_000)
    assert await client.pull() == []
    for action in ("show", "delete", "pause", "resume", "run", "next"):
        assert await client.refused("schedule", {"action": action, "name": "s"}) == "schedule_unknown"
    again = await put(client)
    assert again["generation"] > first["generation"]
    await host.sleep_ms(1_500)
    assert {each["message_id"] for each in before}.isdisjoint({each["message_id"] for each in await client.pull()})
    await act(client, "delete")
    status = await host.balanced(pending=0)
    assert status["delivered"] == status["accepted"]


async def test_a_schedule_runs_now_beside_its_moments(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    made = await put(client, every_ms=HOUR_MS, body="${run}", template=True)
    run = await act(client, "run")
    assert (await act(client, "show"))["next_ms"] == made["next_ms"]
    await act(client, "pause")
    again = await act(client, "run")
    messages = await client.pull(wait_ms=1_000)
    assert texts(messages) == ["1", "2"]
    assert [each["message_id"] for each in messages] == [run["message_id"], again["message_id"]]
    assert await client.lookup(run["receipt"], again["receipt"]) == ["delivered", "delivered"]
    assert (await act(client, "show"))["fired"] == 2
    await host.balanced(pending=0)


async def test_another_definition_takes_the_place_of_the_first_and_the_same_one_changes_nothing(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    first = await put(client, every_ms=HOUR_MS, properties={"b": "1", "a": "2"})
    same = await put(client, every_ms=HOUR_MS, properties={"a": "2", "b": "1"})
    assert same == first | {"changed": False}
    other = await put(client, body="other", properties={"a": "2"})
    assert other["changed"] and other["generation"] > first["generation"]
    await host.sleep_ms(1_500)
    (message,) = await client.pull()
    moment = str(message["due_ms"])
    assert (message["body"], message["properties"]) == (
        b"other",
        {"a": "2", "schedule": "s", "schedule_moment_ms": moment},
    )
    assert (await act(client, "show"))["definition"] == {
        "subject": "s",
        "body": "other",
        "properties": {"a": "2"},
        "every_ms": 1_000,
    }
    await act(client, "pause")
    assert (await put(client, every_ms=2_000))["state"] == "paused", "a new definition does not resume"


async def test_a_schedule_ends_after_so_many_times_and_at_its_end(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 500
    await put(client, "times", start_ms=start_ms, times=3)
    await put(client, "end", start_ms=start_ms, end_ms=start_ms + 2_000)
    at = await put(client, "once", every_ms=None, at="2099-01-01T00:00")
    assert at["next_ms"] == 4_070_908_800_000
    assert len((await act(client, "next", "times"))["firings"]) == 3
    await host.sleep_ms(6_000)
    by_name: dict[str, int] = {}
    for each in await client.pull():
        name = each["properties"]["schedule"]
        by_name[name] = by_name.get(name, 0) + 1
    assert by_name == {"times": 3, "end": 2}
    assert [(await act(client, "show", name))["state"] for name in ("times", "end", "once")] == [
        "ended",
        "ended",
        "active",
    ]
    resumed = [(await act(client, "pause", "times"))["state"], (await act(client, "resume", "times"))["state"]]
    assert resumed == ["paused", "ended"]
    page = await client.request("schedule", {"action": "list", "max": 2})
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["end", "once"], "once")
    page = await client.request("schedule", {"action": "list", "max": 2, "after": page["next"]})
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["times"], None)
    assert "body" not in page["schedules"][0]["definition"]


async def test_a_moment_beyond_the_longest_delay_is_reached_in_steps(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(message={"delay_ms_max": MINUTE_MS}))
    start_ms = host.now_ms + 10 * MINUTE_MS
    made = await put(client, start_ms=start_ms, every_ms=DAY_MS)
    assert (made["state"], made["next_ms"]) == ("active", start_ms)
    await host.sleep_ms(10 * MINUTE_MS - 100)
    assert await client.pull() == []
    await host.sleep_ms(200)
    assert moments(await client.pull()) == [start_ms]
    await host.balanced(pending=0)


@pytest.mark.parametrize(("misfire", "fired"), [("all", [1, 2, 3, 4, 5]), ("latest", [5]), ("none", [])])
async def test_after_hours_down_the_policy_decides_what_fires(boot: Boot, misfire: str, fired: list[int]) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + HOUR_MS
    await put(client, start_ms=start_ms, every_ms=HOUR_MS, misfire=misfire)
    await host.stop()
    host.clock.step(5 * HOUR_MS + 30 * MINUTE_MS)
    client = await host.start_connected()
    await host.sleep_ms(2_000)
    assert moments(await client.pull()) == [start_ms + (each - 1) * HOUR_MS for each in fired]
    assert (await act(client, "show"))["next_ms"] == start_ms + 5 * HOUR_MS
    await host.balanced(pending=0)


async def test_missed_moments_beyond_the_bound_never_fire(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + HOUR_MS
    await put(client, start_ms=start_ms, every_ms=HOUR_MS, misfire="all", catch_up_ms=2 * HOUR_MS)
    await host.stop()
    host.clock.step(5 * HOUR_MS + 30 * MINUTE_MS)
    client = await host.start_connected()
    await host.sleep_ms(2_000)
    assert moments(await client.pull()) == [start_ms + 3 * HOUR_MS, start_ms + 4 * HOUR_MS]


async def test_three_days_of_seconds_are_caught_up_in_parts(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 1_000
    await put(client, start_ms=start_ms, misfire="all", times=450)
    await host.stop()
    host.clock.step(3 * DAY_MS)
    client = await host.start_connected()
    await host.sleep_ms(5_000)
    seen = moments(await client.pull())
    first = -(-(host.now_ms - 5_000 - DAY_MS) // 1_000) * 1_000
    assert len(seen) == 450 and seen == [seen[0] + 1_000 * each for each in range(450)]
    assert abs(seen[0] - first) <= 5_000
    assert (await act(client, "show"))["state"] == "ended"


async def test_no_step_of_the_clock_fires_a_moment_twice_or_early(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 30_000
    await put(client, start_ms=start_ms, every_ms=10_000, misfire="all")
    seen: list[int] = []
    for step_ms in (45_000, -60_000, 20_000, -HOUR_MS, HOUR_MS + 30_000):
        host.clock.step(step_ms)
        await host.sleep_ms(5_000)
        got = moments(await client.pull())
        assert all(moment <= host.now_ms for moment in got)
        seen += got
    assert seen == [start_ms + 10_000 * each for each in range(len(seen))]
    assert len(seen) == 3
    await host.balanced(pending=0)


@pytest.mark.parametrize("stop", ["stop", "kill", "without a checkpoint", "power"])
async def test_schedules_go_on_after_a_restart(boot: Boot, stop: str) -> None:
    host, client = await boot.connected(small_settings(storage={"checkpoint_interval_ms": 700}))
    start_ms = host.now_ms + 500
    await put(client, "a", start_ms=start_ms)
    await put(client, "b", every_ms=HOUR_MS)
    await put(client, "gone", every_ms=HOUR_MS)
    await put(client, "far", every_ms=None, cron="0 0 1 1 *")
    for life in range(3):
        await host.sleep_ms(2_000)
        if life == 1:
            await act(client, "delete", "gone")
        if stop == "kill":
            await host.kill()
        elif stop == "power":
            await host.lose_power(life)
        else:
            await host.stop()
        if stop == "without a checkpoint":
            host.disk.remove(f"{DATA_DIR}/checkpoint")
        client = await host.start_connected()
    await host.sleep_ms(2_000)
    seen = moments(await client.pull())
    assert seen == [start_ms + 1_000 * each for each in range(len(seen))]
    assert len(seen) >= 8
    page = await client.request("schedule", {"action": "list"})
    assert [each["name"] for each in page["schedules"]] == ["a", "b", "far"]
    await host.balanced(pending=0)
    await host.stop()
    assert findings_of(host) == []


async def test_values_of_the_moment_stand_in_a_template(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    body = "${name} ${run} ${due} ${due_ms} $$ $x"
    await put(client, "n", every_ms=None, cron="* * * * * *", zone="Asia/Kathmandu", body=body, template=True, times=1)
    await put(client, "plain", body=body, times=1)
    await host.sleep_ms(2_500)
    found = {each["properties"]["schedule"]: each for each in await client.pull()}
    due_ms = found["n"]["due_ms"]
    name, run, due, ms, dollar, other = found["n"]["body"].decode().split(" ")
    assert (name, run, ms, dollar, other) == ("n", "1", str(due_ms), "$", "$x")
    assert due.endswith("+05:45")
    assert found["plain"]["body"].decode() == body


async def test_jitter_follows_from_name_and_moment(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 1_000
    for name in ("a", "b"):
        await put(client, name, start_ms=start_ms, every_ms=60_000, jitter_ms=30_000)
    firings = {name: (await act(client, "next", name, count=3))["firings"] for name in ("a", "b")}
    assert firings["a"] != firings["b"]
    await host.sleep_ms(4 * MINUTE_MS)
    for name in ("a", "b"):
        shown = await act(client, "next", name, count=1)
        assert shown["firings"][0]["moment_ms"] > firings[name][-1]["moment_ms"]
    due = {
        each["message_id"].split(":")[0] + each["message_id"].split(":")[2]: each["due_ms"]
        for each in await client.pull()
    }
    for name in ("a", "b"):
        for each in firings[name]:
            assert 0 <= each["due_ms"] - each["moment_ms"] <= 30_000
            assert due[f"{name}{each['moment_ms']}"] == each["due_ms"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"every_ms": None}, "invalid_argument"),
        ({"cron": "* * * * *"}, "invalid_argument"),
        ({"every_ms": None, "cron": "0 0 31 2 *"}, "invalid_argument"),
        ({"every_ms": None, "cron": "x"}, "invalid_argument"),
        ({"every_ms": None, "at": "2001-01-01T00:00"}, "invalid_argument"),
        ({"every_ms": 999}, "invalid_argument"),
        ({"zone": "Mars/Base"}, "invalid_argument"),
        ({"gap": "x"}, "invalid_argument"),
        ({"misfire": "x"}, "invalid_argument"),
        ({"end_ms": 1}, "invalid_argument"),
        ({"days_out": ["x"]}, "invalid_argument"),
        ({"jitter_ms": 3_600_001}, "invalid_argument"),
        ({"template": True, "body": "${x}"}, "invalid_argument"),
        ({"body": b"x" * 65_537}, "message_too_large"),
        ({"body": 7}, "invalid_argument"),
        ({"properties": {"a": 1}}, "properties_invalid"),
        ({"properties": {"a": object}}, "properties_invalid"),
        ({"subject": ""}, "subject_invalid"),
        ({"tag": "*"}, "invalid_argument"),
        ({"name": "a/b"}, "invalid_argument"),
        ({"name": "a\n"}, "invalid_argument"),
        ({"name": "x" * 129}, "invalid_argument"),
    ],
)
async def test_a_wrong_definition_is_refused_and_makes_nothing(boot: Boot, wrong: dict[str, Any], error: str) -> None:
    host, client = await boot.connected(small_settings())
    asked = {"action": "put", "name": "s", "subject": "s", "body": b"b", "every_ms": 1_000} | wrong
    if wrong.get("properties") == {"a": object}:
        asked["properties"] = {"a": None}
    assert await client.refused("schedule", asked) == error
    assert (await client.request("schedule", {"action": "list"}))["schedules"] == []
    await host.balanced(pending=0)


async def test_a_retired_window_takes_no_firing_so_it_is_due_now(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    start_ms = host.now_ms + 1_000
    await put(client, start_ms=start_ms, every_ms=HOUR_MS, misfire="all", catch_up_ms=30 * DAY_MS, times=2)
    await host.stop()
    host.clock.step(20 * DAY_MS)
    client = await host.start_connected()
    await host.sleep_ms(5_000)
    messages = await client.pull()
    assert moments(messages) == [start_ms, start_ms + HOUR_MS]
    await host.balanced(pending=0)
