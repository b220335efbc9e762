"""A listener whose acks take long to reach their node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from delayserver.client import AckResult, AsyncClient, Client, Delivery
from delayserver.client.listening import listener_core
from tests.delayserver.cli.conftest import serving
from tests.delayserver.client.listening.listeners import listening, until


def test_a_source_with_too_many_unsettled_messages_pulls_again_when_they_are_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ack = AsyncClient.ack

    async def slow_ack(
        client: AsyncClient, subject: str, group: str, deliveries: Iterable[Delivery | int]
    ) -> AckResult:
        await anyio.sleep(0.3)
        return await ack(client, subject, group, deliveries)

    monkeypatch.setattr(AsyncClient, "ack", slow_ack)
    monkeypatch.setattr(listener_core, "UNSETTLED_MAX", 4)
    with serving(tmp_path / "data") as server, Client(server.address) as client:
        client.send_columns("a", client.ping() // 1000, [b"%d" % number for number in range(40)])
        with listening("trio", server.address, {("a",): lambda _: None}, prefetch_messages=2) as listener:
            until(lambda: listener.stats.acked == 40)
