"""`find`: stored messages by id, by key, or by subject and time."""

from __future__ import annotations

from typing import Any

import numpy as np

from delayserver.front.connection import Connection
from delayserver.front.handlers.message_replies import stored_rows
from delayserver.operations.access.access import Access
from delayserver.operations.groups.finding import FoundPage, StoreSearch
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.schema.stored import FindMessages
from delayserver.protocol.schema.structs import read_request


class FindingHandlers:
    """Requests that search."""

    def __init__(self, finding: StoreSearch) -> None:
        self._finding = finding

    async def find(self, connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """A page of the messages that are stored on this node."""
        page = _open_to(connection.access, await self._finding.find(read_request(request.arguments, FindMessages)))
        return {"messages": stored_rows(page.messages, page.name_of), "next": page.next}


def _open_to(access: Access, page: FoundPage) -> FoundPage:
    """The page without messages of subjects that are closed to the client."""
    codes = np.unique(page.messages.subject).tolist()
    closed = [code for code in codes if not access.may(page.name_of(code))]
    if not closed:
        return page
    kept = np.flatnonzero(~np.isin(page.messages.subject, closed))
    return FoundPage(page.messages.take(kept), page.name_of, page.next)
