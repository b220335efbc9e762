"""A process joins its cluster: what it takes from its files for the lives of the member."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.settings import TlsSettings
from delayserver.members.founding import Engines
from delayserver.members.member_map import FORMAT, Founded
from delayserver.server.joining import Joined, join
from tests.delayserver.cluster.test_healing import Logs
from tests.delayserver.follow.members import IDENTITY, Records


async def founded() -> Engines:
    """A cluster of one shard, without members."""
    logs = Logs(Records())
    engines = Engines(logs, logs)
    await engines.note(Founded(FORMAT, f"{IDENTITY.cluster_id:012x}", (f"{IDENTITY.server_id:012x}",)))
    return engines


async def joined(engines: Engines, file: ClusterFile) -> Joined:
    """A member whose directory it may open."""
    return await join(file, engines, "h:1", "", Random(1), lambda _: None)


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
