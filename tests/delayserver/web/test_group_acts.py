"""Consumer groups over HTTP: seek, remove, policy, dead letters, reading; and what else the wire can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.delayserver.web.web_server import Reply, Web, serve, stop


def publish(web: Web, subject: str, *bodies: str) -> list[int]:
    """Stores messages; their positions."""
    reply = web.post(f"/v1/subjects/{subject}/publish", [{"body": body} for body in bodies])
    assert reply.status == 200, reply
    return [row["position"] for row in reply.json]


def bodies(reply: Reply) -> list[Any]:
    assert reply.status == 200, reply
    return [message["body"] for message in reply.json["messages"]]


def test_a_group_goes_on_where_a_seek_says_and_a_removed_one_begins_anew(web: Web) -> None:
    path = "/v1/subjects/sought/groups/g"
    first, *_ = publish(web, "sought", "a", "b", "c")
    assert bodies(web.post(f"{path}/pull", {"ack": True})) == ["a", "b", "c"]
    assert web.ask("GET", path).json["lag"] == 0
    for asked, expected in (
        ({"position": first + 1}, ["b", "c"]),
        ({"to": "earliest"}, ["a", "b", "c"]),
        ({"time_ms": 0}, ["a", "b", "c"]),
        ({"at": "2001-01-01T00:00:00Z"}, ["a", "b", "c"]),
        ({"to": "latest"}, []),
    ):
        sought = web.post(f"{path}/seek", asked)
        assert sought.status == 200 and sought.json["end"] == first + 3, sought
        assert bodies(web.post(f"{path}/pull", {"ack": True})) == expected
    assert web.ask("DELETE", path).status == 204
    for method, place, document in (
        ("GET", path, None),
        ("DELETE", path, None),
        ("POST", f"{path}/seek", {"to": "latest"}),
    ):
        reply = web.ask(method, place, document)
        assert (reply.status, reply.json["error"]) == (404, "group_unknown")
    assert bodies(web.post(f"{path}/pull", {"ack": True})) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "wrong", [{}, {"to": "latest", "position": 1}, {"at": "soon"}, {"to": "middle"}, {"time_ms": 2**62}]
)
def test_a_seek_without_one_goal_is_refused(web: Web, wrong: dict[str, Any]) -> None:
    reply = web.post("/v1/subjects/sought/groups/g/seek", wrong)
    assert (reply.status, reply.json["error"]) == (400, "invalid_argument")


def test_dead_letters_are_shown_sent_again_and_dropped(web: Web) -> None:
    path = "/v1/subjects/dying/groups/g"
    assert web.ask("PATCH", f"{path}/policy", {"attempts": 1}).json["attempts"] == 1
    assert web.ask("GET", f"{path}/policy").json["policy"]["attempts"] == 1
    publish(web, "dying", "a", "b", "c")
    given = [message["delivery"] for message in web.post(f"{path}/pull", {}).json["messages"]]
    assert web.post(f"{path}/nack", {"deliveries": given}).json["dead_lettered"] == 3
    letters = web.ask("GET", f"{path}/dead-letters?body_as=text").json["letters"]
    assert [(letter["body"], letter["reason"]) for letter in letters] == [(body, "nacked") for body in "abc"]
    assert "body" not in web.ask("GET", f"{path}/dead-letters?after={letters[0]['position']}").json["letters"][0]
    resent = web.post(f"{path}/dead-letters/resend", {"positions": [letters[1]["position"]]})
    assert resent.json == {"resent": 1, "left": 2, "unreadable": 0}
    assert bodies(web.post(f"{path}/pull", {"ack": True, "wait_ms": 20_000})) == ["b"]
    assert web.post(f"{path}/dead-letters/drop", {"max": 1}).json == {"dropped": 1, "left": 1}
    for act in ("resend", "drop"):
        reply = web.post(f"{path}/dead-letters/{act}", {"positions": [77_777]})
        assert (reply.status, reply.json["error"], reply.json["left"]) == (404, "letter_unknown", 1)
    assert web.ask("PATCH", f"{path}/policy", {"attempts": None}).json["policy"]["attempts"] is None


def test_waiting_keys_are_shown_tried_again_and_skipped(web: Web) -> None:
    path = "/v1/subjects/blocked/groups/g"
    assert web.ask("PATCH", f"{path}/policy", {"failed_key": "wait", "first_ms": 3_600_000}).status == 200
    for body in ("a", "b"):
        assert web.post("/v1/subjects/blocked/publish", {"body": body, "order_key": "k"}).status in (200, 201)
    (message,) = web.post(f"{path}/pull", {"max_messages": 1}).json["messages"]
    assert web.post(f"{path}/nack", {"deliveries": [message["delivery"]]}).status == 200
    (key,) = web.ask("GET", f"{path}/waiting-keys").json["keys"]
    assert (key["order_key"], key["attempts"], key["state"]) == ("k", 1, "paused")
    assert list(key) == ["position", "order_key", "message_id", "state", "attempts", "since_ms", "behind", "due_ms",
                         "sequence", "server_id", "next_ms"]  # fmt: skip
    assert web.ask("GET", path).json["waiting_keys"] == 1
    chosen = {"positions": [key["position"]]}
    assert web.post(f"{path}/waiting-keys/retry", chosen).json == {"retried": 1, "left": 1}
    assert "next_ms" not in web.ask("GET", f"{path}/waiting-keys").json["keys"][0]
    assert (web.post(f"{path}/waiting-keys/skip", chosen).json["error"]) == "policy_invalid"
    assert web.ask("PATCH", f"{path}/policy", {"attempts": 9}).status == 200
    assert web.post(f"{path}/waiting-keys/skip", chosen).json == {"skipped": 1, "left": 0}
    for act in ("retry", "skip"):
        reply = web.post(f"{path}/waiting-keys/{act}", chosen)
        assert (reply.status, reply.json["error"], reply.json["left"]) == (404, "waiting_key_unknown", 0)
    assert bodies(web.post(f"{path}/pull", {"ack": True})) == ["b"]


def test_messages_are_read_without_a_group(web: Web) -> None:
    first, *_ = publish(web, "read", "a", "b", "c")
    path = "/v1/subjects/read/messages"
    page = web.ask("GET", f"{path}?position={first}&max=2")
    assert bodies(page) == ["a", "b"] and page.json["next"] == first + 2
    assert bodies(web.ask("GET", f"{path}?position={page.json['next']}")) == ["c"]
    assert bodies(web.ask("GET", f"{path}?position={first + 3}")) == []
    beyond = web.ask("GET", f"{path}?position={first + 9}")
    assert (beyond.status, beyond.json["error"], beyond.json["end"]) == (416, "position_out_of_range", first + 3)
    assert web.ask("GET", "/v1/groups?subject=read").json == {"groups": []}


def test_a_transaction_is_seen_when_it_is_committed(web: Web) -> None:
    asked = {"subject": "transacted", "body": "x", "group": "shop"}
    kept, dropped = (web.post("/v1/transactions", asked) for _ in range(2))
    assert kept.status == 201
    pull = "/v1/subjects/transacted/groups/g/pull"
    assert bodies(web.post(pull, {})) == []
    first = web.ask("GET", "/v1/transactions?max=1").json
    rest = web.ask("GET", f"/v1/transactions?after={first['next']}").json
    shown, other = first["transactions"] + rest["transactions"]
    assert [shown["receipt"], other["receipt"]] == [kept.json["receipt"], dropped.json["receipt"]]
    assert (shown["subject"], shown["group"], shown["checks"], rest["next"]) == ("transacted", "shop", 0, None)
    rolled = web.ask("POST", f"/v1/transactions/{dropped.json['receipt']}/rollback")
    assert rolled.json == {"receipt": dropped.json["receipt"], "outcome": "rolled_back"}
    committed = web.ask("POST", f"/v1/transactions/{kept.json['receipt']}/commit")
    assert committed.json["outcome"] == "committed" and committed.json["new_receipt"]
    assert bodies(web.post(pull, {"wait_ms": 20_000, "ack": True})) == ["x"]
    assert web.ask("POST", f"/v1/transactions/{kept.json['receipt']}/commit").json == committed.json
    late = web.ask("POST", f"/v1/transactions/{dropped.json['receipt']}/commit")
    assert (late.status, late.json["error"]) == (409, "transaction_ended")


def test_a_list_of_publishes_has_a_result_for_each_row(web: Web) -> None:
    rows = [{"body": "a"}, {"tag": "no body"}, {"body": "b", "message_id": "m"}, {"body": "x" * 2_000_000}]
    reply = web.post("/v1/subjects/listed/publish", rows)
    assert reply.status == 200
    results = [row.get("error") or row["message_id"] for row in reply.json]
    assert results[1:] == ["invalid_argument", "m", "message_too_large"]
    assert [row["row"] for row in reply.json if "error" in row] == [1, 3]
    assert bodies(web.post("/v1/subjects/listed/groups/g/pull", {})) == ["a", "b"]


def test_a_delay_level_goes_by_its_name(web: Web) -> None:
    by_name, by_number = (
        web.post("/v1/messages", {"subject": "levels", "body": "x", "delay_level": level}).json for level in ("1m", 5)
    )
    assert abs(by_name["due_ms"] - by_number["due_ms"]) < 30_000
    reply = web.post("/v1/messages", {"subject": "levels", "body": "x", "delay_level": "31s"})
    assert reply.status == 400 and "no delay level" in reply.json["detail"]


def test_a_reload_says_what_has_changed(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[[groups]]\nname = "near"\nnodes = ["embedded"]\n[[routes]]\npattern = "*"\ngroups = ["near"]\n')
    server = serve("--data-dir", str(tmp_path / "data"), "--config", str(config))
    try:
        with config.open("a") as more:
            more.write('[[routes]]\npattern = "a.*"\ngroups = ["near"]\n')
        reply = server.ask("POST", "/v1/reload")
        assert reply.status == 200 and any("a.*" in change for change in reply.json["changes"]), reply
        config.write_text("nonsense")
        wrong = server.ask("POST", "/v1/reload")
        assert wrong.status == 400 and wrong.json["error"] == "config_invalid"
    finally:
        stop(server)
