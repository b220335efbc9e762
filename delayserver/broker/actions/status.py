"""The broker's part of `status`, in a time that does not grow with its subjects and groups."""

from __future__ import annotations

from typing import Any

from delayserver.broker.actions.state import BrokerState


def broker_status(state: BrokerState) -> dict[str, Any]:
    """Numbers of the store, the queues and the groups. `group_rows.py` has the numbers of each group."""
    return {
        "store_bytes": state.files.store.end - state.files.store.first,
        "cache_bytes": state.files.store.cache_bytes,
        "open_windows": len(state.windows.extents),
        "damaged_messages": state.damages.messages,
        "damages": len(state.damages.texts),
        "queues": len(state.queues),
        "groups": len(state.groups),
        "groups_max": state.limits.groups_max,
    }
