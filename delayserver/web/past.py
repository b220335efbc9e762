"""The figures of the last hour, for charts of a page that has just been opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

PAST_PERIOD_S: Final = 15
"""A sample is taken so often, as monitors do."""
SAMPLES_MAX: Final = 3600 // PAST_PERIOD_S
"""One hour. A sample is some 40 numbers, so all of them are some 300 KB."""
WHOLE_MAX: Final = 10
"""The newest samples keep their details: the page draws those of the last two minutes."""
_DETAILS: Final = ("groups", "stages", "by_group")


class Past:
    """Samples of the figures, the oldest first. The memory is bounded, whatever the server has."""

    def __init__(self) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES_MAX)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Keep a sample of the reply to `metrics`, if the last one is a period old.

        A server that began anew, or whose clock went back, begins a new past. A server that is not ready leaves no sample.
        """
        if not metrics.get("ready") or "lateness" not in metrics:
            return
        sample = _sample(metrics)
        last = self._samples[-1] if self._samples else None
        if last is not None:
            if _began_anew(last, sample):
                self._samples.clear()
            elif sample["at_ms"] - last["at_ms"] < PAST_PERIOD_S * 1000:
                return
        self._samples.append(sample)
        if len(self._samples) > WHOLE_MAX:
            for name in _DETAILS:
                self._samples[-1 - WHOLE_MAX].pop(name, None)

    def samples(self) -> list[dict[str, Any]]:
        """Each has the time, the counts of messages, and `lateness`: counts by bucket, of all broker groups together.

        The newest also have `groups` (such counts by broker group), `stages`, and `by_group`: deliveries by broker group.
        """
        return list(self._samples)


def _began_anew(last: Mapping[str, Any], sample: Mapping[str, Any]) -> bool:
    return bool(
        sample["server_id"] != last["server_id"]
        or sample["uptime_s"] < last["uptime_s"]
        or sample["at_ms"] < last["at_ms"]
    )


def _sample(metrics: Mapping[str, Any]) -> dict[str, Any]:
    groups = {name: each["counts"] for name, each in metrics["lateness"].items()}
    return {
        "at_ms": metrics["clock"]["server_us"] // 1000,
        "server_id": metrics["server_id"],
        "uptime_s": metrics["uptime_s"],
        "accepted": metrics["accepted"],
        "delivered": metrics["delivered"],
        "pending": metrics["pending"],
        "lateness": [sum(counts) for counts in zip(*groups.values(), strict=True)],
        "groups": groups,
        "stages": {
            name: {"count": sum(each["counts"]), "sum": each["sum_us"]}
            for name, each in metrics.get("stages", {}).items()
        },
        "by_group": {name: each["delivered"] for name, each in metrics.get("groups", {}).items()},
    }
