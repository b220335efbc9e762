"""The figures of a member: who leads, how far it is, and how the shared log answers."""

from __future__ import annotations

from typing import Any

from delayserver.metrics.server_families import server_families
from delayserver.protocol.figure_fields import fields_of
from delayserver.protocol.figures import MemberFigures
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Host, small_settings

LOOK_MS = 6_000
"""The log is looked at every 5 s."""


async def figures(host: Host) -> dict[str, Any]:
    """Those of a member in `status`."""
    (found,) = (await (await host.client()).status())["cluster"]
    assert isinstance(found, dict)
    return found


async def test_a_primary_and_its_standby_tell_their_roles_and_what_the_log_is(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await client.put("one", first.now_ms + 60_000)
    await second.sleep_ms(LOOK_MS)
    primary, standby = await figures(first), await figures(second)
    assert set(primary) == {each.name for each in fields_of(MemberFigures)}
    log = {"log_answers": True, "log_unanswered": 0, "log_copies": 3, "log_in_sync": 3, "log_in_sync_min": 2}
    for found, member, role in ((primary, "a", "primary"), (standby, "b", "standby")):
        expected = {"shard": 0, "member": member, "role": role, "epoch": 1, "lag_records": 0, "lag_ms": 0, **log}
        assert {key: found[key] for key in expected} == expected
        assert found["log_kept"] > 10 and found["log_faults"] == []
    assert 0 < primary["lease_left_ms"] <= 1_200 and 0 <= primary["beat_age_ms"] < 500
    assert (standby["lease_left_ms"], standby["beat_age_ms"]) == (0, None)


async def test_a_standby_that_gets_nothing_counts_what_it_lacks(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    _, second = cluster.hosts.values()
    await cluster.start()
    await second.sleep_ms(LOOK_MS)
    cluster.engine.logs[1].pause()  # it asks, and hears how long the log is
    await second.sleep_ms(2 * LOOK_MS)
    standby = await figures(second)
    assert standby["role"] == "standby" and standby["log_answers"]
    assert standby["lag_records"] > 20 and standby["lag_ms"] > 2 * LOOK_MS - 1_000


async def test_a_log_that_does_not_answer_is_counted_and_no_lag_is_told(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    await host.start_connected()
    await host.sleep_ms(LOOK_MS)
    cluster.engine.logs[0].connect(False)
    await host.sleep_ms(2 * LOOK_MS)
    found = await figures(host)
    assert (found["role"], found["log_answers"], found["lag_records"], found["lease_left_ms"]) == (
        "primary", False, None, 0,
    )  # fmt: skip
    assert found["log_unanswered"] >= 2 and found["beat_age_ms"] > 2 * LOOK_MS - 1_000
    assert found["proposals"] > 0 and found["proposals_bytes"] > 0
    cluster.engine.logs[0].connect(True)
    await host.sleep_ms(LOOK_MS)
    found = await figures(host)
    assert found["log_answers"] and found["lag_records"] == 0 and found["beat_age_ms"] < 500


async def test_each_takeover_adds_one_to_the_epoch_and_the_metric_of_the_primary_is_one(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    await cluster.start()
    await second.sleep_ms(LOOK_MS)
    await first.kill()
    await second.wait_up()
    client = await second.client()
    families = {each.name: each.samples for each in server_families(await client.request("metrics"))}
    labels = {"shard": "0", "member": "b"}
    for name, value in (("delayserver_member_leads", 1.0), ("delayserver_member_epoch", 2.0)):
        (sample,) = families[name]
        assert (sample.labels, sample.value) == (labels, value)


async def test_a_server_without_a_cluster_has_no_figures_of_a_member(boot: Boot) -> None:
    _, client = await boot.connected(small_settings())
    assert (await client.status())["cluster"] == []
    families = {each.name: each.samples for each in server_families(await client.request("metrics"))}
    assert families["delayserver_member_leads"] == []
