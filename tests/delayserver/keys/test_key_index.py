"""The key index beside a running server: all that waits is in it, through crashes, full disks and damage."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from delayserver.keys import key_index
from delayserver.keys.key_index import KeyIndex
from delayserver.protocol.errors import KeysIncomplete
from delayserver.recover.checking.check import check_directory
from delayserver.recover.mending.mender import carry_out
from delayserver.recover.mending.rebuild_plan import plan_rebuild
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import CORRUPT, MISSING, UNREADABLE, Findings
from store.keys.key_rows import KeyRows, name_keys
from store.keys.key_table import KeyTable, open_table
from store.records.id_hash import hash_id
from store.tables.names import SUBJECT
from tests.fakes.host import Boot, Client, Host, small_settings

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
KEYS = "/data/keys"
MANIFEST = f"{KEYS}/runs"


def index_of(host: Host) -> KeyIndex:
    return host.server.parts.keys.index


def table_of(host: Host) -> KeyTable:
    table = index_of(host).table
    assert table is not None
    return table


async def rows_of(host: Host, message_id: str, subject: str = "s") -> KeyRows:
    """What the index says about an id, the newest message first."""
    code = host.server.parts.ground.names.code(SUBJECT, subject)
    keys = name_keys(np.array([hash_id(message_id.encode())], np.uint64), np.array([code], np.uint32))
    _, rows = await index_of(host).find(keys, 100)
    return rows


async def due_times(host: Host, message_id: str, subject: str = "s") -> list[int]:
    due: list[int] = (await rows_of(host, message_id, subject))["due_ms"].tolist()
    return due


async def send_ids(client: Client, due_ms: int, count: int, prefix: str = "id") -> None:
    some = [
        {"subject": "s", "body": "b", "message_id": f"{prefix}-{number}", "due_ms": due_ms + number}
        for number in range(count)
    ]
    assert all("receipt" in result for result in await client.send(*some))


def is_complete(host: Host) -> bool:
    table = index_of(host).table
    return table is not None and table.complete


def a_run(host: Host) -> str:
    return next(path for path in host.disk.files(KEYS) if path.endswith(".run"))


def found_by_check(host: Host) -> dict[str, int]:
    taken, checked = check_directory(host.disk, "/data")
    taken.close()
    return {kind: count for kind, count in checked.findings.counts.items() if count}


async def test_a_message_with_an_id_is_found_as_soon_as_it_is_accepted(boot: Boot) -> None:
    host, client = await boot.connected()
    due = host.now_ms + DAY_MS
    await send_ids(client, due, 3)
    await client.put("no id", due)
    assert await due_times(host, "id-1") == [due + 1]
    await send_ids(client, due + 50, 3)
    assert await due_times(host, "id-1") == [due + 51, due + 1]
    assert await due_times(host, "id-1", "other") == await due_times(host, "id-9") == []
    assert table_of(host).rows == 6


async def test_only_messages_of_clients_have_keys(boot: Boot) -> None:
    """A redelivery is a record of the pipeline with the id of its message."""
    host, client = await boot.connected()
    await client.put("b", host.now_ms, message_id="again")
    (pulled,) = await client.pull(wait_ms=1000)
    nack = {"group": "g", "subject": "s", "count": 1, "deliveries": pulled["delivery"], "delay_ms": DAY_MS}
    assert (await client.request("nack", nack))["nacked"] == 1
    await host.settled()
    assert len(await due_times(host, "again")) == table_of(host).rows == 1


@pytest.mark.parametrize("seed", range(4))
async def test_no_end_of_a_process_loses_a_key(boot: Boot, seed: int) -> None:
    random = Random(seed)
    host = await boot.started(seed=seed + 1)
    due = host.now_ms + 3 * DAY_MS
    for life in range(4):
        client = await host.client()
        for burst in range(3):
            await send_ids(client, due, 4, f"{life}-{burst}")
            await host.sleep_ms(random.choice([1, 700, 1500]))
        how = random.randrange(3)
        await (host.restart() if how == 0 else host.restart_killed() if how == 1 else host.restart_unpowered(seed))
        assert is_complete(host), "there was nothing to make again"
        assert found_by_check(host) == {}
    for life in range(4):
        for burst in range(3):
            assert await due_times(host, f"{life}-{burst}-3") == [due + 3]


async def test_rounds_that_a_run_has_are_not_added_again(boot: Boot) -> None:
    host, client = await boot.connected()
    await send_ids(client, host.now_ms + DAY_MS, 5)
    await host.settled()
    await index_of(host).make_durable()
    await host.restart_killed()  # the checkpoint is older than the run: the round comes again
    assert (table_of(host).run_count, table_of(host).rows) == (1, 5)


async def test_many_rows_go_to_disk_before_the_next_checkpoint(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (key_index, "delayserver.keys.key_upkeep"):
        monkeypatch.setattr(f"{getattr(module, '__name__', module)}.YOUNG_ROWS_MAX", 20)
    host, client = await boot.connected(small_settings(storage={"checkpoint_interval_ms": 3_600_000}))
    for number in range(6):
        await send_ids(client, host.now_ms + DAY_MS, 10, str(number))
    await host.until(lambda: table_of(host).run_count > 0)
    assert table_of(host).young_rows <= 20 and table_of(host).rows == 60


async def test_a_retired_message_leaves_the_index(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"retention_ms": HOUR_MS}))
    for _ in range(6):
        await send_ids(client, host.now_ms, 2, "soon")
        await host.sleep_ms(1500)
    await host.settled()
    await host.sleep_ms(4 * HOUR_MS)
    for number in range(2):
        await send_ids(client, host.now_ms + 30 * DAY_MS, 2, f"far-{number}")
        await host.sleep_ms(1500)
    await host.until(lambda: table_of(host).rows == 4)
    assert await due_times(host, "soon-1") == []


# -- a directory without a whole index


async def made_again(host: Host) -> None:
    await host.until(lambda: is_complete(host), within_ms=60_000)


async def a_day_and_minutes(host: Host, client: Client) -> dict[str, int]:
    """Sends messages to all kinds of files. Their due times, by id."""
    sent: dict[str, int] = {}
    for ahead in (1, 3, 30, 31):
        due = host.now_ms + ahead * HOUR_MS + (40 * DAY_MS if ahead > 3 else 0)
        await send_ids(client, due, 3, f"{ahead}h")
        sent |= {f"{ahead}h-{number}": due + number for number in range(3)}
    await host.sleep_ms(1500)
    return sent


def remove_all(host: Host) -> None:
    for path in host.disk.files(KEYS):
        host.disk.remove(path)


def remove_run(host: Host) -> None:
    host.disk.remove(a_run(host))


def flip_manifest(host: Host) -> None:
    host.disk.flip_bit(MANIFEST, 60)


def flip_footer(host: Host) -> None:
    host.disk.flip_bit(a_run(host), host.disk.size(a_run(host)) - 5)


def of_another_server(host: Host) -> None:
    run = a_run(host)
    host.disk.overwrite(
        run, 0, b"".join([host.disk.content(run)[:16], b"\1\2\3\4\5\6\0\0", host.disk.content(run)[24:]])
    )


DAMAGES: list[tuple[Any, dict[str, int], int]] = [
    (remove_all, {}, 0),
    (remove_run, {MISSING: 1}, 1),
    (flip_manifest, {CORRUPT: 1}, 1),
    (flip_footer, {CORRUPT: 1}, 1),
    (of_another_server, {CORRUPT: 1}, 1),
]


@pytest.mark.parametrize(("damage", "findings", "told"), DAMAGES)
async def test_an_index_that_is_not_whole_is_made_again_beside_serving(
    boot: Boot, damage: Any, findings: dict[str, int], told: int
) -> None:
    host, client = await boot.connected()
    sent = await a_day_and_minutes(host, client)
    await host.stop()
    damage(host)
    assert found_by_check(host) == findings
    await host.start()
    client = await host.client()
    await send_ids(client, host.now_ms + DAY_MS, 1, "new")
    await made_again(host)
    assert len((await client.status())["corruption"]) == told
    for message_id, due in sent.items():
        assert await due_times(host, message_id) == [due]
    assert len(await due_times(host, "new-0")) == 1
    await host.restart_unpowered()
    assert is_complete(host) and found_by_check(host) == {}
    assert await due_times(host, "31h-2") == [sent["31h-2"]]


async def test_an_index_behind_the_checkpoint_is_made_again(boot: Boot) -> None:
    """An older program has worked on the directory."""
    host, client = await boot.connected()
    sent = await a_day_and_minutes(host, client)
    await host.stop()
    old = {path: host.disk.content(path) for path in host.disk.files(KEYS)}
    client = await host.start_connected()
    await send_ids(client, host.now_ms + DAY_MS, 2, "older")
    await host.stop()
    remove_all(host)
    for path, content in old.items():
        host.disk.open(path, create=True)
        host.disk.overwrite(path, 0, content)
    await host.start()
    await made_again(host)
    assert len(await due_times(host, "older-1")) == 1 and await due_times(host, "1h-0") == [sent["1h-0"]]


async def test_while_the_index_is_made_a_search_is_refused_by_name(boot: Boot) -> None:
    host, client = await boot.connected()
    await a_day_and_minutes(host, client)
    index_of(host).start_over()
    with pytest.raises(KeysIncomplete) as caught:
        await due_times(host, "1h-0")
    assert caught.value.retry_after_ms
    await made_again(host)
    assert len(await due_times(host, "1h-0")) == 1


async def test_a_start_goes_on_with_an_index_that_was_being_made(boot: Boot) -> None:
    host, client = await boot.connected()
    await a_day_and_minutes(host, client)
    await host.stop()
    remove_all(host)
    held = True

    def refuse(operation: str, path: str) -> int:
        return 28 if held and operation == "pwrite" and path.endswith(".run") else 0

    host.disk.refuse = refuse
    await host.start()
    await host.sleep_ms(5000)
    assert not is_complete(host)
    await host.kill()
    held = False
    await host.start()
    await made_again(host)
    assert len(await due_times(host, "30h-1")) == 1


async def test_a_flipped_block_is_found_by_a_search_and_the_index_is_made_again(boot: Boot) -> None:
    host, client = await boot.connected()
    await a_day_and_minutes(host, client)
    await index_of(host).make_durable()
    for path in host.disk.files(KEYS):
        if path.endswith(".run"):
            host.disk.flip_bit(path, 4096 + 20)
    assert found_by_check(host)[CORRUPT] >= 1
    with pytest.raises(KeysIncomplete):
        await due_times(host, "1h-0")
    await made_again(host)
    assert len(await due_times(host, "1h-0")) == 1
    status = await client.status()
    assert "checksum of a block of keys" in status["corruption"][0]
    assert not host.server.runtime.damage.own, "a member with such damage may lead"


async def test_damage_that_is_passed_over_leaves_a_gap(boot: Boot) -> None:
    host, client = await boot.connected()
    await a_day_and_minutes(host, client)
    await host.settled()
    path = next(path for path in host.disk.files("/data/schedule_log") if path.endswith(".direct.log"))
    host.disk.flip_bit(path, 64 + 70)
    index_of(host).start_over()
    await made_again(host)
    assert index_of(host).has_gaps
    assert len(await due_times(host, "31h-1")) == 1
    await host.restart_killed()
    assert index_of(host).has_gaps


async def test_a_full_disk_stops_no_checkpoint_and_loses_no_key(boot: Boot) -> None:
    host, client = await boot.connected()
    await send_ids(client, host.now_ms + DAY_MS, 4, "before")
    full = True
    host.disk.refuse = lambda operation, path: 28 if full and operation == "pwrite" and path.startswith(KEYS) else 0
    written = host.server.parts.upkeep.checkpointing.written
    await send_ids(client, host.now_ms + DAY_MS, 4, "full")
    await host.until(lambda: host.server.parts.upkeep.checkpointing.written > written)
    assert len(await due_times(host, "full-1")) == 1
    await host.restart_killed()  # the checkpoint is ahead of the index now
    assert not is_complete(host)
    full = False
    await made_again(host)
    assert len(await due_times(host, "full-1")) == len(await due_times(host, "before-1")) == 1


async def test_rebuild_makes_the_index_anew(boot: Boot) -> None:
    host, client = await boot.connected()
    sent = await a_day_and_minutes(host, client)
    await host.stop()
    table = open_table(host.disk, KEYS, host.server.parts.ground.opened.directory.server_id)
    table.end_making(gaps=True)
    table.close()
    findings = Findings()
    taken = capture(host.disk, "/data", findings)
    carry_out(taken, plan_rebuild(taken, findings))
    taken.close()
    assert not host.disk.exists(MANIFEST)
    await host.start()
    await made_again(host)
    assert await due_times(host, "30h-2") == [sent["30h-2"]] and not index_of(host).has_gaps


async def test_a_disk_that_cannot_read_a_run_is_told_by_check(boot: Boot) -> None:
    host, client = await boot.connected()
    await a_day_and_minutes(host, client)
    await host.stop()
    host.disk.unreadable[a_run(host)] = [(4096, 8192)]
    assert found_by_check(host) == {UNREADABLE: 1}
