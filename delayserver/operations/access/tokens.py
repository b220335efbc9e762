"""The access tokens of this server: makes, lists, revokes and rotates them, and turns the token of a client into rights.

Tokens are changed one at a time: the table is durable first, then the change counts. A client whose token was revoked,
or has expired, loses its connection in that step.

A token that ends takes its connections along, also a pull that waits. So no request asks whether its token is still
valid. A table that was made stays: the last token that is revoked opens nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from delayserver.logs.events import EventLogger
from delayserver.operations.access.access import LOOK, Access, TokenLimits
from delayserver.operations.access.waiting import WaitingCounts
from delayserver.protocol.errors import DiskFull, InDoubt, StorageFailed, Unauthenticated
from delayserver.protocol.schema.tokens import (
    CreateToken,
    ListTokens,
    RevokeToken,
    RotateToken,
    Token,
    TokenList,
    TokenWithText,
)
from delayserver.protocol.token_text import ParsedToken, parse_token
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.state.shard.shared_tokens import SharedTokens, TokenChange
from delayserver.tokens.changes import created, is_valid, revoked, rotated
from delayserver.tokens.making import new_secret, new_text
from delayserver.tokens.shown import shown, with_text
from store.disk.filesystem import FileSystem
from store.errors import DiskFullError, StoreError
from store.tables.stored_tokens import (
    FILE_NAME,
    StoredSecret,
    StoredToken,
    decode_tokens,
    read_tokens,
    write_tokens,
)

events = EventLogger()

SHARED_S: Final = 5.0
"""A change that did not come back with the map of the cluster within this time is in doubt."""
SWEEP_S_MAX: Final = 30.0
"""Expiry follows the wall clock, which may be set. So it is compared at least this often."""

_NOTHING: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A connection that uses a token, and what ends it."""

    token: ParsedToken
    end: Callable[[], None]


class OwnTokens:
    """Tokens of this process alone, which no table has. They open all subjects for one role, and end with the process."""

    def __init__(self, runtime: Runtime) -> None:
        self._chance = runtime.chance
        self._clock = runtime.clock
        self._tokens: dict[str, StoredToken] = {}

    def make(self, role: str = LOOK) -> str:
        """A new token; its text."""
        token_id, text, digest = new_secret(self._chance)
        created_ms = self._clock.now_us() // 1000
        self._tokens[token_id] = StoredToken(token_id, "", (role,), ("*",), (StoredSecret(digest),), created_ms)
        return text

    def get(self, token_id: str) -> StoredToken | None:
        """The token with this id."""
        return self._tokens.get(token_id)


class TokenBook:
    """The tokens in force, and the connections that use them."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        server_id: int,
        own: OwnTokens,
        waiting: WaitingCounts,
        runtime: Runtime,
        shared: SharedTokens | None = None,
    ) -> None:
        """Reads the table of the data directory. `shared`, in a member of a cluster: the table of all shards, which comes
        before it. Raises CorruptionError, FormatError."""
        self._write = partial(write_tokens, fs, directory, server_id)
        self._decode = partial(decode_tokens, path=f"{directory}/{FILE_NAME}", server_id=server_id)
        self._shared = shared
        # The connection that asked for the change which is on its way.
        self._asking = 0
        self._clock = runtime.clock
        self._chance = runtime.chance
        self._workers = runtime.workers
        self._changing = trio.Lock()
        self._own = own
        self._waiting = waiting
        self._stored: dict[str, StoredToken] = {}
        self._accesses: dict[str, Access] = {}
        self._bound: dict[int, _Bound] = {}
        self._changed = Bell()
        self.enabled = trio.Event()
        """Set from the moment on from which every client needs a token: there is a table, even if it is empty."""
        stored = read_tokens(fs, directory, server_id) if shared is None or shared.table is None else shared.table
        if stored is not None:
            self._adopt(stored)

    # -- clients

    def authenticate(self, text: object) -> tuple[Access, ParsedToken]:
        """The rights of a client that gives this token. Raises Unauthenticated, with one sentence for all reasons."""
        parsed = parse_token(text)
        token = None if parsed is None else self._token(parsed.token_id)
        # An unknown id costs the same comparison as a known one.
        valid = is_valid(token, parsed, self._now_ms()) if token is not None and parsed is not None else _never(parsed)
        if token is None or parsed is None or not valid:
            raise Unauthenticated("this token is none that is valid here: it is wrong, revoked or expired")
        return self._access(token), parsed

    def bind(self, number: int, token: ParsedToken, end: Callable[[], None]) -> None:
        """The connection with this number uses the token. `end` is called when the token ends."""
        self._bound[number] = _Bound(token, end)
        self._changed.ring()

    def forget(self, number: int) -> None:
        """Forgets a connection."""
        self._bound.pop(number, None)

    def _token(self, token_id: str) -> StoredToken | None:
        return self._stored.get(token_id) or self._own.get(token_id)

    def _access(self, token: StoredToken) -> Access:
        """One for all connections of the token: its limits count them together."""
        access = self._accesses.get(token.token_id)
        if access is None:
            access = Access(token.token_id, frozenset(token.roles), token.subjects)
            if token.rate or token.bytes_rate or token.pending_max:
                waiting, clock = self._waiting.of(access), self._clock
                access.limit(TokenLimits(token.rate, token.bytes_rate, token.pending_max, waiting, clock.monotonic_us))
            self._accesses[token.token_id] = access
        return access

    # -- changes

    async def listed(self, _asked: ListTokens, _asking: int) -> TokenList:
        """All tokens of the table, in the order in which they were made."""
        return TokenList([shown(token) for token in self._stored.values()])

    async def create(self, asked: CreateToken, _asking: int = 0) -> TokenWithText:
        """Makes a token. Only the reply has its text. Raises InvalidArgument, DiskFull, StorageFailed."""
        async with self._changing:
            token_id, text, digest = new_secret(self._chance)
            tokens = list(self._stored.values())
            token = created(tokens, asked, token_id, digest, self._now_ms())
            await self._store(TokenChange(None, token), [*tokens, token])
            return with_text(token, text)

    async def revoke(self, asked: RevokeToken, asking: int = 0) -> Token:
        """Ends a token. The connection with the number `asking` still gets its answer. Raises InvalidArgument (unknown),
        DiskFull, StorageFailed."""
        async with self._changing:
            token, rest = revoked(list(self._stored.values()), asked.id)
            await self._store(TokenChange(token, None), rest, asking)
            return shown(token)

    async def rotate(self, asked: RotateToken, asking: int = 0) -> TokenWithText:
        """Gives a token a new secret; the one before stays valid for the overlap. Errors as for `revoke`."""
        async with self._changing:
            text, digest = new_text(self._chance, asked.id)
            now_ms = self._now_ms()
            until_ms = now_ms + asked.overlap_ms
            before = list(self._stored.values())
            token, tokens = rotated(before, asked.id, digest, now_ms, until_ms)
            await self._store(TokenChange(token, token), tokens, asking)
            return with_text(token, text)

    async def _store(self, change: TokenChange, tokens: list[StoredToken], asking: int = 0) -> None:
        if self._shared is not None:
            await self._share(self._shared, change, asking)
            return
        try:
            await self._workers.run(partial(self._write, tokens))
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:
            raise StorageFailed(str(error)) from error
        self._adopt(tokens, asking)

    def _adopt(self, tokens: Iterable[StoredToken], asking: int = 0) -> None:
        self._stored = {token.token_id: token for token in tokens}
        self._accesses = {
            token_id: access for token_id, access in self._accesses.items() if self._token(token_id) is not None
        }
        self.enabled.set()
        self._end_invalid(asking)
        self._changed.ring()

    # -- in a member of a cluster

    async def _share(self, shared: SharedTokens, change: TokenChange, asking: int) -> None:
        """Make a change that of all shards. It is in force here when this returns. Raises InDoubt."""
        self._asking = asking
        try:
            # The first change of the cluster brings the tokens along that this shard has alone.
            shared.offer([*self._own_changes(shared), change])
            with trio.move_on_after(SHARED_S):
                while not shared.has(change):
                    await shared.read.reached(shared.read.value + 1)
                self._adopt_shared(shared)
                return
        finally:
            self._asking = 0
        raise InDoubt(
            f"the map of the cluster did not say within {SHARED_S:g} s whether it has the change: list the tokens"
        )

    async def bring(self) -> None:
        """This member leads. Tokens that its shard alone has, from before there were common ones, become those of all."""
        if self._shared is not None:
            self._shared.offer(self._own_changes(self._shared))

    def _own_changes(self, shared: SharedTokens) -> list[TokenChange]:
        return [] if shared.table is not None else [TokenChange(None, token) for token in self._stored.values()]

    async def follow(self) -> None:
        """Take each later table of the cluster, until cancelled. It is in force at once. Then the file gets it, for backups
        and for a start without the map."""
        shared = self._shared
        assert shared is not None, "it is a member of a cluster"
        written: tuple[StoredToken, ...] | None = None
        while True:
            self._adopt_shared(shared)
            read, table = shared.read.value, shared.table
            if table is not None and table != written:
                try:
                    await self._workers.run(partial(self._write, table))
                    written = table
                except StoreError as error:
                    events.warning(
                        "tokens_not_written", "the file of tokens is not written: {reason}", reason=str(error)
                    )
            await shared.read.reached(read + 1)

    def _adopt_shared(self, shared: SharedTokens) -> None:
        known = tuple(self._stored.values()) if self.enabled.is_set() else None
        if shared.table is not None and shared.table != known:
            self._adopt(shared.table, self._asking)

    def keep(self, content: bytes) -> None:
        """Writes a table that came out of the log of a shard, from before there were common ones. Raises CorruptionError,
        FormatError, DiskFullError, SyncFailedError."""
        if self._shared is None or self._shared.table is None:
            self._write(self._decode(content))

    def adopt(self, content: bytes) -> None:
        """The file has this table: it is in force from this step on."""
        if self._shared is None or self._shared.table is None:
            self._adopt(self._decode(content))

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    # -- the end of tokens

    async def run(self) -> None:
        """Ends connections whose tokens expire, until cancelled."""
        while True:
            self._changed.hush()
            next_ms = self._end_invalid()
            wait_s = SWEEP_S_MAX if next_ms is None else min((next_ms - self._now_ms()) / 1000 + 0.001, SWEEP_S_MAX)
            if next_ms is None and not self._bound:
                await self._changed.rung()
                continue
            with trio.move_on_after(max(wait_s, 0.001)):
                await self._changed.rung()

    def _end_invalid(self, spared: int = 0) -> int | None:
        """Ends the connections whose token is not valid any more. Returns when the next one may end; None for never."""
        now_ms = self._now_ms()
        ends: list[int] = []
        for number, bound in list(self._bound.items()):
            token = self._token(bound.token.token_id)
            if number == spared:
                continue
            if token is None or not is_valid(token, bound.token, now_ms):
                del self._bound[number]
                bound.end()
            else:
                ends += [
                    until for until in (token.expires_ms, *[each.until_ms for each in token.secrets]) if until > now_ms
                ]
        return min(ends, default=None)


def _never(parsed: ParsedToken | None) -> bool:
    hmac.compare_digest(_NOTHING, _NOTHING if parsed is None else parsed.digest)
    return False
