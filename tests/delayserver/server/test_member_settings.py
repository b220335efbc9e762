"""Settings that are well for a server alone, and that a member of a cluster refuses by name."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.settings import ListenSettings, Settings, StorageSettings
from delayserver.config.toml_file import ConfigError
from delayserver.server.process import serve
from store.disk.memory_filesystem import MemoryFileSystem
from tests.fakes.host import small_settings

CLUSTER = ClusterFile("127.0.0.1:1", "a")


async def refusal(settings: Settings) -> str:
    """Why a member does not start with these settings."""
    with trio.fail_after(10), pytest.raises(ConfigError) as raised:
        await serve(settings, fs=MemoryFileSystem(1 << 24), cluster=CLUSTER)
    return str(raised.value)


async def test_a_member_leaves_nothing_to_the_page_cache() -> None:
    said = await refusal(Settings(listen=ListenSettings(port=0), storage=StorageSettings(durability="os")))
    assert said.startswith("storage.durability = 'os' is not for a member of a cluster")


@pytest.mark.parametrize("name", ["listen.frame_bytes_max", "storage.group_bytes_max"])
async def test_a_member_makes_no_record_that_the_log_does_not_take(name: str) -> None:
    table, key = name.split(".")
    changed: dict[str, Any] = {table: {key: (16 << 20) + 1}}
    said = await refusal(small_settings(**changed))
    assert said.startswith(f"{name} = 16777217 is too large for a member of a cluster")
