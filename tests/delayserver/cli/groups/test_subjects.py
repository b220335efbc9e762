"""`delayserver subjects` and `delayserver route` against a real server."""

from __future__ import annotations

from tests.delayserver.cli.conftest import Server


def test_subjects_lists_what_the_node_has_met(server: Server) -> None:
    for subject in ("listed.a", "listed.b", "other"):
        server.run("send", subject, "x", "--delay", "1h")
    assert server.run("subjects", "listed.*").out == "listed.a\nlisted.b\n"
    assert [row["subject"] for row in server.run("subjects", "listed.*", "--json").rows] == ["listed.a", "listed.b"]
    assert "other\n" in server.run("subjects").out


def test_no_subject_ends_with_1(server: Server) -> None:
    done = server.run("subjects", "never-*")
    assert (done.code, done.out) == (1, "")


def test_route_shows_the_group_and_its_nodes(server: Server) -> None:
    row = server.run("route", "orders", "--json").row
    assert row["group"] == "default"
    assert [node["address"] for node in row["nodes"]] == [server.address]
    text = server.run("route", "orders", "--order-key", "customer-1").out
    assert text.startswith("group default\n")
    assert server.address in text and "the key's node is" in text
