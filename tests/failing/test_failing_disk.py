"""The disk refuses one call of a scripted day: nothing acknowledged is lost, and no error goes without its name.

Here some calls of each run; `python -m tests.failing` refuses every single one.
"""

from __future__ import annotations

import errno

import pytest

from tests.failing.scenario import Call, calls_of_a_good_day, run

# Calls that the system refuses for want of a descriptor or of a right. The others get EIO.
NAMES = ("open", "exists", "listdir", "make_directory", "remove", "replace", "lock")
RUNS = 24


def chosen() -> list[tuple[int, Call, int]]:
    """Some calls, spread over all operations and kinds of files: of each the one in the middle of the day."""
    places: dict[Call, list[int]] = {}
    for number, call in enumerate(calls_of_a_good_day(), 1):
        places.setdefault(call, []).append(number)
    kinds = sorted(places, key=lambda call: (call.operation, call.kind))
    picked = []
    for turn, call in enumerate(kinds[:: -(-len(kinds) // RUNS)]):
        code = (errno.EMFILE, errno.EACCES, errno.EIO)[turn % 3] if call.operation in NAMES else errno.EIO
        picked.append((places[call][len(places[call]) // 2], call, code))
    return picked


def test_a_call_that_the_disk_refuses_loses_nothing_and_has_a_name() -> None:
    runs = chosen()
    assert len({call.operation for _, call, _ in runs}) >= 8
    for number, call, code in runs:
        record, calls = run(number, code)
        assert calls[number - 1] == call
        assert not record.faults, (errno.errorcode[code], number, call, record.faults)


# Each of these was met once by the sweep.
@pytest.mark.parametrize("kind", ["/data/schedule_log/#/#.direct.log"])
def test_bytes_of_messages_that_cannot_be_read_for_a_moment_are_read_again(kind: str) -> None:
    calls = calls_of_a_good_day()
    numbers = [number for number, call in enumerate(calls, 1) if call == Call("pread", kind)]
    for number in numbers[:: len(numbers) // 6]:
        record, _ = run(number, errno.EIO)
        assert not record.faults, (number, record.faults)
