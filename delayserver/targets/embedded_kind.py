"""The kind `embedded`: the broker of this process. The server makes its one target, which knows the broker."""

from __future__ import annotations

from typing import Final

from delayserver.targets.kinds import Capabilities, TargetKind

EMBEDDED_ADDRESS: Final = "embedded"
"""The address by which a configuration names this node."""


def _read_address(text: str) -> str:
    if text != EMBEDDED_ADDRESS:
        raise ValueError(f"{text[:64]!r} is no address: write {EMBEDDED_ADDRESS!r}")
    return text


EMBEDDED: Final = TargetKind(
    EMBEDDED_ADDRESS,
    lambda _address, _options: Capabilities(
        consumable=True, here=True, keeps_keys=True, idempotent=True, windows_complete=True, probes=True
    ),
    lambda _address, _options, around: around.local,
    _read_address,
)
