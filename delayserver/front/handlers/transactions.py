"""`prepare`, `commit` and `rollback`."""

from __future__ import annotations

from delayserver.front.connection import Connection
from delayserver.front.handlers.reading import GivenMessages
from delayserver.front.handlers.send import SendHandlers
from delayserver.operations.messages.named_messages import GivenItems
from delayserver.operations.messages.transactions import EndedColumns, GivenTransactions, Transactions
from delayserver.operations.sending.prepare import Prepare, TransactionTerms
from delayserver.protocol.errors import DelayServerError, InvalidArgument, TransactionEnded, error_to_map
from delayserver.protocol.frames import RequestFrame, RowsReply
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import format_receipt
from delayserver.protocol.schema.structs import read_request, result_of
from delayserver.protocol.schema.transactions import Ended, EndTransactions
from delayserver.runtime.fair_turns import Work


class TransactionHandlers:
    """Requests of transactions."""

    def __init__(
        self,
        prepare: Prepare,
        transactions: Transactions,
        reader: GivenMessages,
        of_server: tuple[str, int],
    ) -> None:
        """`of_server`: its id, and the most messages of a request."""
        self._prepare = prepare
        self._transactions = transactions
        self._reader = reader
        self._server_id, self._batch_messages_max = of_server

    def prepare(self, connection: Connection, request: RequestFrame) -> None:
        """Prepares messages in rows or columns. Request and reply are those of `send`, and the terms come beside."""
        get = request.arguments.get
        asked = TransactionTerms(get("group"), get("check_after_ms"), get("checks_max"), get("policy"))
        SendHandlers(self._prepare.under(asked), self._batch_messages_max, self._server_id, None).send(
            connection, request
        )

    async def commit(self, connection: Connection, request: RequestFrame) -> None:
        """Commits transactions. A row of the reply has the receipt of the visible message."""
        work = connection.work()
        given = await self._given(request, work)
        await self._reply(connection, request.id, await self._transactions.commit(given, work, connection.access), work)

    async def rollback(self, connection: Connection, request: RequestFrame) -> None:
        """Rolls transactions back."""
        work = connection.work()
        given = await self._given(request, work)
        await self._reply(
            connection, request.id, await self._transactions.rollback(given, work, connection.access), work
        )

    async def _given(self, request: RequestFrame, work: Work) -> GivenTransactions:
        """Raises InvalidArgument, BatchTooLarge."""
        asked = read_request(request.arguments, EndTransactions)
        items = self._reader.bounded(asked.receipts or asked.items or [])
        given = GivenTransactions(GivenItems(len(items)))
        for place, item in enumerate(items):
            await work.items()
            if asked.receipts:
                given.messages.receipts[place] = item
            elif type(item) is dict and item.get("receipt") is not None:
                given.messages.receipts[place] = item["receipt"]
                given.due[place] = item.get("due_ms"), item.get("delay_ms")
            else:
                given.messages.errors[place] = InvalidArgument("an item is a map with the receipt of a transaction")
        return given

    async def _reply(self, connection: Connection, request_id: int, ended: EndedColumns, work: Work) -> None:
        await connection.room()
        results = RowsReply(request_id)
        named = ended.named
        for place, (sequence, due_ms) in enumerate(zip(named.sequence.tolist(), named.due_ms.tolist(), strict=True)):
            await work.items()
            error = ended.errors.get(place)
            results.add(result_of(self._row(ended, place, sequence, due_ms)) if error is None else _refused(error))
        connection.when_room(lambda: connection.reply(results.frame()))

    def _row(self, ended: EndedColumns, place: int, sequence: int, due_ms: int) -> Ended:
        receipt = format_receipt(self._server_id, due_ms, sequence)
        if place not in ended.committed:
            return Ended(receipt=receipt, outcome_name=Outcome.ROLLED_BACK.label)
        new, new_due_ms = ended.committed[place]
        return Ended(
            receipt=receipt,
            outcome_name=Outcome.COMMITTED.label,
            new_receipt=format_receipt(self._server_id, new_due_ms, new),
            due_ms=new_due_ms,
            sequence=new,
        )


def _refused(error: DelayServerError) -> dict[str, object]:
    fields = error_to_map(error)
    return fields | {"outcome": error.outcome.label} if isinstance(error, TransactionEnded) else fields
