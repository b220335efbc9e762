"""Targets for small files that are replaced whole: identity, sequences, checkpoint, days, the broker's checkpoint and its
policies, and the settings of the operator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from delayserver.broker.files.broker_checkpoint import BrokerCheckpoint, decode_checkpoint, encode_checkpoint
from delayserver.broker.files.policies_file import PolicyRow, decode_policies, encode_policies
from delayserver.broker.policy import ConsumerPolicy
from delayserver.broker.queues.queue import ConsumeQueue, SpilledBlock
from delayserver.broker.queues.queue_columns import QueueColumns
from delayserver.broker.queues.window_table import Extent
from delayserver.config.toml_file import ConfigError, load_settings
from delayserver.protocol.token_text import make_token, parse_token
from delayserver.web.origins import check_site, is_loopback_name
from delayserver.web.problems import Problem
from ops.fuzz.memory_disk import MemoryDisk
from ops.fuzz.records import crc_bytes
from ops.fuzz.target import Target, ensure
from store.errors import StoreError
from store.tables import checkpoint as checkpoint_file
from store.tables.checkpoint import Checkpoint, CoarseDays, DispatchFiles, ScheduleFiles
from store.tables.days import DayTable, SealedDay
from store.tables.identity import DataDirectory, read_identity, read_reservation, rebuild_identity
from store.tables.member_file import MemberOf, read_owner, write_owner
from store.tables.stored_tokens import StoredSecret, StoredToken, read_tokens, write_tokens

SERVER = 5
_DAY_MS = 86_400_000


def _written(path: str, write: Callable[[MemoryDisk], object]) -> bytes:
    disk = MemoryDisk({})
    write(disk)
    return disk.content(path)


def _mend_fixed(data: bytes) -> bytes:
    """Corrects `identity` and `sequences`, whose checksum is in the last four bytes."""
    if len(data) != 64:
        return data
    size = 24 if data[:8] == b"DELAYIDN" else 40
    return data[:60] + crc_bytes(data[:size])


def identity_file() -> bytes:
    """The identity file of server 5."""
    return _written("/d/identity", lambda disk: rebuild_identity(disk, "/d", SERVER))


def sequences_file() -> bytes:
    """The reservation of a new directory."""
    return _written("/d/sequences", lambda disk: DataDirectory.open(disk, "/d", random_server_id=lambda: SERVER))


def _check_identity(data: bytes) -> bool:
    try:
        server_id = read_identity(MemoryDisk({"/d/identity": data}), "/d")
    except StoreError:
        return False
    ensure(crc_bytes(data[:24]) == data[60:64], "an identity without its checksum")
    if data[8:16] == bytes((1, 0)) + bytes(6):
        written = _written("/d/identity", lambda disk: rebuild_identity(disk, "/d", server_id))
        ensure(written == data, "an identity is written differently")
    return True


def _check_sequences(data: bytes) -> bool:
    try:
        read_reservation(MemoryDisk({"/d/sequences": data}), "/d/sequences", SERVER)
    except StoreError:
        return False
    ensure(crc_bytes(data[:40]) == data[60:64], "a reservation without its checksum")
    return True


def checkpoint_bytes() -> bytes:
    """A checkpoint with a row in every table."""
    one = np.array([60_000])
    return checkpoint_file.encode(
        Checkpoint(
            SERVER, 500, 10,
            ScheduleFiles(one, np.zeros(1, np.uint8), np.array([500]), np.array([10]), np.array([4])),
            DispatchFiles(one, np.zeros(1, np.uint8), np.array([300]), np.zeros((1, 16), np.int64), np.zeros(1, np.int64)),
            CoarseDays(np.array([_DAY_MS]), np.array([64])),
            {"accepted": 10, "delivered": 2}, True, 77,
        )
    )  # fmt: skip


def _mend_checkpoint(data: bytes) -> bytes:
    if len(data) < 64:
        return data
    body = data[64:]
    head = data[:24] + len(body).to_bytes(8, "little") + crc_bytes(body)
    return head + crc_bytes(head) + bytes(24) + body


def _check_checkpoint(data: bytes) -> bool:
    try:
        found = checkpoint_file.decode(data, "/checkpoint")
    except StoreError:
        return False
    ensure(crc_bytes(data[64:]) == data[32:36], "a checkpoint without its checksum")
    for table in (found.schedule, found.dispatch, found.coarse_days):
        ensure(len({len(getattr(table, name)) for name, _, _ in table.columns}) == 1, "columns of different lengths")
    written = checkpoint_file.encode(found)
    ensure(checkpoint_file.encode(checkpoint_file.decode(written, "/checkpoint")) == written, "a checkpoint changes")
    return True


def days_file() -> bytes:
    """A table of days with a sealed, a drained and a whole day."""
    sealed = [SealedDay(_DAY_MS, 9, False), SealedDay(0, 5, True)]
    return _written("/d/days", lambda disk: DayTable.rebuild(disk, "/d/days", 3 * _DAY_MS, sealed, [2 * _DAY_MS]))


def _mend_days(data: bytes) -> bytes:
    return crc_bytes(data[4:]) + data[4:]


def _check_days(data: bytes) -> bool:
    try:
        table = DayTable.open(MemoryDisk({"/d/days": data}), "/d/days", 0)
    except StoreError:
        return False
    ensure(crc_bytes(data[4:]) == data[:4], "a table of days without its checksum")
    due_ms, sequence = np.array([0, _DAY_MS, 5 * _DAY_MS]), np.array([1, 9, 10])
    table.coarse_rows(due_ms, sequence)
    table.draining()
    table.starts_of(due_ms, 60_000)
    return True


_TOKENS = (
    StoredToken("0123456789ab", "shop", ("send",), ("orders*",), (StoredSecret(bytes(32)),), 1, 2, 3, 4, 5),
    StoredToken(
        "ba9876543210", "", ("look", "admin"), ("*",), (StoredSecret(bytes(32)), StoredSecret(b"x" * 32, 9)), 7
    ),
)


def tokens_file() -> bytes:
    """A table with two tokens, one of which was rotated."""
    return _written("/d/tokens", lambda disk: write_tokens(disk, "/d", SERVER, _TOKENS))


def _mend_tokens(data: bytes) -> bytes:
    if len(data) < 32:
        return data
    head = data[:24] + (len(data) - 32).to_bytes(4, "little")
    return head + crc_bytes(head + data[32:]) + data[32:]


def _check_tokens(data: bytes) -> bool:
    try:
        tokens = read_tokens(MemoryDisk({"/d/tokens": data}), "/d", SERVER)
    except StoreError:
        return False
    ensure(tokens is not None, "a table of tokens that is there is taken for none")
    assert tokens is not None
    again = _written("/d/tokens", lambda disk: write_tokens(disk, "/d", SERVER, tokens))
    ensure(read_tokens(MemoryDisk({"/d/tokens": again}), "/d", SERVER) == tokens, "a table that does not come back")
    return True


def _check_token(data: bytes) -> bool:
    text = data.decode("latin-1")
    parsed = parse_token(text)
    ensure(parsed is None or (text.startswith("dst_") and len(parsed.digest) == 32), "a token that is none")
    return parsed is not None


def _check_headers(data: bytes) -> bool:
    """The headers of a request: name, colon and value a line."""
    lines = [line.partition(b":") for line in data.split(b"\n")]
    try:
        check_site([(name.lower(), value) for name, _, value in lines])
    except Problem:
        return False
    is_loopback_name(data.decode("latin-1"))
    return True


def broker_checkpoint_bytes() -> bytes:
    """A checkpoint with a queue that has a spilled block, a window and a segment."""
    queue = ConsumeQueue(0, 5)
    queue.blocks = [SpilledBlock(0, 64, 64, 64)]
    queue.append(300, 0, 2)
    return encode_checkpoint(
        BrokerCheckpoint(
            SERVER,
            3,
            500,
            300,
            QueueColumns.of({(1, 0): queue}),
            {(SERVER, 60_000): [Extent(64, 500, 1, 9)]},
            {0: 77},
        )
    )


def _mend_broker_checkpoint(data: bytes) -> bytes:
    return b"DELAYBCP" + crc_bytes(data[12:]) + data[12:]


def _check_broker_checkpoint(data: bytes) -> bool:
    found = decode_checkpoint(data, SERVER)
    if found is None:
        return False
    ensure(crc_bytes(data[12:]) == data[8:12], "a checkpoint without its checksum")
    written = encode_checkpoint(found)
    again = decode_checkpoint(written, SERVER)
    ensure(again is not None and encode_checkpoint(again) == written, "a checkpoint of the broker changes")
    return True


def policies_bytes() -> bytes:
    """A table of policies with a row for each way of pauses."""
    levels = PolicyRow(ConsumerPolicy(attempts=3, first_level=2), 7)
    paused = PolicyRow(ConsumerPolicy(attempts=16, first_ms=10, factor=1.5, cap_ms=60_000), 8)
    return encode_policies({(1, 2): levels, (1, 3): paused}, SERVER)


def _mend_policies(data: bytes) -> bytes:
    return b"DELAYGRP" + crc_bytes(data[12:]) + data[12:]


def _check_policies(data: bytes) -> bool:
    try:
        found = decode_policies(data, SERVER)
    except ValueError:
        return False
    ensure(crc_bytes(data[12:]) == data[8:12], "a table of policies without its checksum")
    written = encode_policies(found, SERVER)
    ensure(encode_policies(decode_policies(written, SERVER), SERVER) == written, "a table of policies changes")
    return True


def owner_file() -> bytes:
    """The file of a member."""
    owner = MemberOf(77, 1, "a", 4096)
    return _written("/d/cluster", lambda disk: write_owner(disk, "/d", SERVER, owner))


def _mend_owner(data: bytes) -> bytes:
    return data[:28] + crc_bytes(data[:28] + data[32:]) + data[32:]


def _check_owner(data: bytes) -> bool:
    try:
        found = read_owner(MemoryDisk({"/d/cluster": data}), "/d", SERVER)
    except StoreError:
        return False
    assert found is not None
    written = _written("/d/cluster", lambda disk: write_owner(disk, "/d", SERVER, found))
    again = read_owner(MemoryDisk({"/d/cluster": written}), "/d", SERVER)
    ensure(again == found and str(found) == str(again), "the file of a member changes")
    return True


_SETTINGS_SEEDS = (
    b'[listen]\nport = 0\n[storage]\nwindow_ms = 60000\ndurability = "os"\n',
    b'[[groups]]\nname = "a"\n[[groups.nodes]]\naddress = "h:1"\nweight = 2\n[[routes]]\nsubjects = "*"\ngroups = ["a"]\n',
)


def _check_settings(data: bytes) -> bool:
    with tempfile.NamedTemporaryFile(suffix=".toml", dir=_memory_folder()) as file:
        Path(file.name).write_bytes(data)
        try:
            load_settings(file.name)
        except ConfigError:
            return False
    return True


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


TARGETS = (
    Target("identity", lambda: [identity_file()], _check_identity, _mend_fixed),
    Target("sequences", lambda: [sequences_file()], _check_sequences, _mend_fixed),
    Target("checkpoint", lambda: [checkpoint_bytes()], _check_checkpoint, _mend_checkpoint),
    Target("days", lambda: [days_file()], _check_days, _mend_days),
    Target("tokens", lambda: [tokens_file()], _check_tokens, _mend_tokens),
    Target("cluster", lambda: [owner_file()], _check_owner, _mend_owner),
    Target("token", lambda: [make_token("0123456789ab", bytes(32)).encode()], _check_token),
    Target("request-headers", lambda: [b"Origin:http://a:1\nHost:a:1\nSec-Fetch-Site:same-origin"], _check_headers),
    Target("broker-checkpoint", lambda: [broker_checkpoint_bytes()], _check_broker_checkpoint, _mend_broker_checkpoint),
    Target("broker-groups", lambda: [policies_bytes()], _check_policies, _mend_policies),
    Target("settings", lambda: list(_SETTINGS_SEEDS), _check_settings),
)
