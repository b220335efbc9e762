"""Targets for the recovery tools: replaces one file of a small data directory, then runs `check` or `dump` on it."""

from __future__ import annotations

import json

from delayserver.recover.checking.check import check_directory
from delayserver.recover.telling.dump import dump_file
from ops.fuzz import logs, tables
from ops.fuzz.memory_disk import MemoryDisk
from ops.fuzz.records import mend_log
from ops.fuzz.target import Target
from store.errors import StoreError

_LOGS = {target.name: target for target in logs.TARGETS}
_TABLES = {target.name: target for target in tables.TARGETS}
_PATHS = {
    "names": "names.log",
    "ledger": "ledger.log",
    "message-log": f"message_log/{0:020d}.log",
    "schedule-log": "schedule_log/1970-01-01/0001.direct.log",
    "dispatch-log": "dispatch_log/1970-01-01/0001.log",
    "broker-store": f"broker/store/{0:020d}.log",
    "broker-queue": f"broker/queue/{0:020d}.log",
    "broker-progress": "broker/progress.log",
    "identity": "identity",
    "sequences": "sequences",
    "checkpoint": "checkpoint",
    "days": "days",
    "broker-checkpoint": "broker/checkpoint",
    "broker-groups": "broker/groups",
}
_NAMES = sorted(_PATHS)


def _seed(name: str) -> bytes:
    return (_LOGS | _TABLES)[name].seeds()[0]


def _seeds() -> list[bytes]:
    """Seeds. The first byte selects the file, and the other bytes replace it."""
    return [bytes([number]) + _seed(name) for number, name in enumerate(_NAMES)]


_WHOLE = {f"/d/{path}": _seed(name) for name, path in _PATHS.items()}


def _directory(data: bytes) -> tuple[MemoryDisk, str]:
    path = f"/d/{_PATHS[_NAMES[data[0] % len(_NAMES)]]}"
    return MemoryDisk({**_WHOLE, path: data[1:]}), path


def _mend(data: bytes) -> bytes:
    if not data:
        return data
    name = _NAMES[data[0] % len(_NAMES)]
    mend = mend_log if name in _LOGS else _TABLES[name].mend
    return data[:1] + mend(data[1:])


def _check(data: bytes) -> bool:
    if not data:
        return False
    disk, _ = _directory(data)
    try:
        _, checked = check_directory(disk, "/d")
    except StoreError:
        return False
    json.dumps([finding.to_map() for finding in checked.findings])
    return True


def _dump(data: bytes) -> bool:
    if not data:
        return False
    disk, path = _directory(data)
    try:
        for row in dump_file(disk, path):
            json.dumps(row, default=str)
    except StoreError:
        return False
    return True


TARGETS = (Target("check", _seeds, _check, _mend), Target("dump", _seeds, _dump, _mend))
