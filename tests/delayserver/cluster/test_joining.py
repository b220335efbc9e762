"""A process joins its cluster: what it takes from its files for the lives of the member."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.settings import TlsSettings
from delayserver.config.toml_file import ConfigError
from delayserver.members.founding import Engines
from delayserver.members.member_map import FORMAT, Announced, Forgotten, Founded, encode_note
from delayserver.server.joining import Joined, join
from tests.delayserver.cluster.test_healing import Logs
from tests.delayserver.follow.members import IDENTITY, Records


async def founded(records: Records | None = None) -> Engines:
    """A cluster of one shard, without members. `records`: those of its map."""
    logs = Logs(records or Records())
    engines = Engines(logs, logs)
    await engines.note(Founded(FORMAT, f"{IDENTITY.cluster_id:012x}", (f"{IDENTITY.server_id:012x}",)))
    return engines


async def joined(engines: Engines, file: ClusterFile, window_ms: int = 60_000) -> Joined:
    """A member whose directory it may open."""
    return await join(file, engines, "h:1", "", window_ms, Random(1), lambda _: None)


@pytest.mark.parametrize(
    ("wanted", "tls", "probes"),
    [
        (True, TlsSettings(), True),
        (False, TlsSettings(), False),
        (True, TlsSettings(certificate="cert.pem", key="key.pem"), False),
        (True, TlsSettings(certificate="cert.pem", key="key.pem", node_ca="ca.pem"), True),
        (True, TlsSettings(node_ca="ca.pem"), True),
    ],
)
async def test_a_member_probes_fronts_unless_it_may_not_or_cannot(
    *, wanted: bool, tls: TlsSettings, probes: bool
) -> None:
    member = await joined(await founded(), ClusterFile("k:1", "a", front_probe=wanted))
    assert member.membership(Random(1), lambda _: None, tls).settings.front_probe == probes


async def test_a_member_with_other_windows_than_its_shard_is_refused_by_name() -> None:
    engines = await founded()
    await joined(engines, ClusterFile("k:1", "a"))
    with pytest.raises(ConfigError, match="30000 is not that of this shard: member a has 60000"):
        await joined(engines, ClusterFile("k:1", "b"), 30_000)
    found = await engines.read_map()
    assert list(found.members) == ["a"], "a start that is refused does not become a member"
    await joined(engines, ClusterFile("k:1", "b"))
    with pytest.raises(ConfigError, match="member b has 60000"):
        await joined(engines, ClusterFile("k:1", "a"), 30_000)


async def test_a_member_of_a_program_that_does_not_tell_its_windows_refuses_nobody() -> None:
    engines = await founded()
    await engines.note(Announced("a", 0, "h:1", "", "0.1", "1"))
    assert await joined(engines, ClusterFile("k:1", "b"), 30_000)


async def test_windows_of_a_member_that_was_forgotten_refuse_nobody() -> None:
    engines = await founded()
    first = await joined(engines, ClusterFile("k:1", "a"))
    await engines.note(Forgotten("a", first.own.instance))
    assert await joined(engines, ClusterFile("k:1", "b"), 30_000)


async def test_of_two_members_that_came_together_the_first_one_says_how_long_windows_are() -> None:
    records = Records()
    engines = await founded(records)
    first = encode_note(Announced("a", 0, "h:1", "", "1", "1", window_ms=60_000))
    with pytest.raises(ConfigError, match="member a has 60000"):
        await join(ClusterFile("k:1", "b"), engines, "h:2", "", 30_000, Random(1), lambda _: records.add(first))
