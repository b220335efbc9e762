"""A start that is refused leaves the data directory as it is."""

from __future__ import annotations

import google_crc32c
import pytest

from store.errors import FormatError
from store.tables.identity import LOCK, SEQUENCES
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot

# Of the header of a file: where its version stands, and its checksum.
VERSION_AT = 8
CHECKSUM_AT = 40


def make_newer(disk: FakeDisk, path: str) -> None:
    """The file has a header that a later program wrote."""
    head = bytearray(disk.content(path)[:CHECKSUM_AT])
    head[VERSION_AT] += 1
    disk.overwrite(path, 0, bytes(head) + google_crc32c.value(bytes(head)).to_bytes(4, "little"))


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("newer", ["broker/progress", "broker/store/", "names.log", "message_log/", "ledger"])
async def test_a_start_that_meets_a_newer_file_changes_no_byte(boot: Boot, newer: str, how: str) -> None:
    host, client = await boot.connected()
    await client.put("m", host.now_ms)
    await client.put("later", host.now_ms + 3_600_000)
    assert await client.pull(wait_ms=1_000)
    await host.settled()
    await (host.stop() if how == "stopped" else host.kill())
    path = next(path for path in host.disk.files() if newer in path)
    make_newer(host.disk, path)
    before = {path: host.disk.content(path) for path in host.disk.files() if not path.endswith(f"/{LOCK}")}
    assert any(path.endswith(f"/{SEQUENCES}") for path in before)
    for _ in range(2):
        await host.start()
        await host.wait_down()
        assert isinstance(host.died_of, FormatError) and "newer than this program" in str(host.died_of)
        host.disk.kill()
        after = {path: host.disk.content(path) for path in host.disk.files() if not path.endswith(f"/{LOCK}")}
        assert after.keys() == before.keys()
        assert [path for path in before if before[path] != after[path]] == []
