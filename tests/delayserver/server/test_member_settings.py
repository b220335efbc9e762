"""Settings that are well for a server alone, and that a member of a cluster refuses by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.settings import ListenSettings, Settings, StorageSettings
from delayserver.config.toml_file import ConfigError
from delayserver.runtime.shared_log import RECORD_BYTES_MAX
from delayserver.server.joining import GATHERED_BYTES_MAX, GATHERED_MESSAGES_MAX
from delayserver.server.process import serve
from store.disk.memory_filesystem import MemoryFileSystem
from store.records.batches import MessageBatch
from store.shared.envelope import ENVELOPE_BYTES
from store.shared.payload import encode_records
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


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("listen.frame_bytes_max", GATHERED_BYTES_MAX),
        ("storage.group_bytes_max", GATHERED_BYTES_MAX),
        ("message.batch_messages_max", GATHERED_MESSAGES_MAX),
    ],
)
async def test_a_member_makes_no_record_that_the_log_does_not_take(name: str, most: int) -> None:
    table, key = name.split(".")
    changed: dict[str, Any] = {table: {key: most + 1}}
    said = await refusal(small_settings(**changed))
    assert said.startswith(f"{name} = {most + 1} is too large for a member of a cluster")
    assert said.endswith(f"Give {most} at most")


def test_the_log_takes_the_columns_of_the_largest_prepare_beside_a_whole_frame() -> None:
    """No column has one value, which would be stored once."""
    count = 2 * GATHERED_MESSAGES_MAX  # with the timers
    varied = np.arange(count) ** 2 % 9973
    columns = {name: varied.astype(dtype) for name, dtype in MessageBatch.schema.fields}
    columns |= {f"{name}_length": np.zeros(count, np.uint32) for name in MessageBatch.schema.blobs}
    columns["bodies_length"] = np.full(count, GATHERED_BYTES_MAX // count - 1, np.uint32)
    columns["bodies_length"][0] += count
    batch = MessageBatch.filled(count, **columns, bodies=bytes(GATHERED_BYTES_MAX))
    size = sum(map(len, encode_records([batch])))
    assert GATHERED_BYTES_MAX + 90 * count < size < RECORD_BYTES_MAX - ENVELOPE_BYTES
