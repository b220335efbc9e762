"""Decides whether new messages may be accepted now."""

from __future__ import annotations

from delayserver.protocol.errors import DiskFull
from delayserver.state.positions.readiness import Readiness
from delayserver.upkeep.housekeeping import Housekeeping


class Admission:
    """Every operation that accepts messages calls `require` first."""

    def __init__(self, readiness: Readiness, housekeeping: Housekeeping, free_bytes_min: int) -> None:
        """`free_bytes_min` is the threshold of `housekeeping` for a full disk; the refusal gives it."""
        self._readiness = readiness
        self._housekeeping = housekeeping
        self._free_bytes_min = free_bytes_min

    def require(self) -> None:
        """Returns if messages may be accepted. Raises NotReady, ShuttingDown, NotPrimary, DiskFull."""
        readiness = self._readiness
        if readiness.stopping.is_set():
            raise readiness.stop_refusal()
        if not readiness.ready:
            raise readiness.refusal()
        if self._housekeeping.disk_low:
            raise DiskFull(
                f"less than {self._free_bytes_min >> 20} MiB are free on the disk, besides what accepted messages take",
                retry_after_ms=1000,
            )
