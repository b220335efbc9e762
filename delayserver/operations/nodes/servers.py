"""The servers among the peers of this process: their claimed ids, their proofs, and their permission to act.

Requests of servers ask for a proof: an HMAC of the shared secret over a challenge. Without a secret only peers of
`listen.server_networks` are believed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from delayserver.config.settings import ListenSettings
from delayserver.logs.events import EventLogger
from delayserver.operations.nodes.server_fence import ServerFence
from delayserver.protocol.errors import DuplicateServerId, InvalidArgument, ServerNotProven
from delayserver.protocol.proof import CHALLENGE_BYTES, is_proof
from delayserver.runtime.runtime import Runtime

events = EventLogger()

INSTANCE_LENGTH = 16
# Pause between two log lines about two processes with one server id.
LOG_AGAIN_US = 60_000_000


class Peer(NamedTuple):
    """The other end of a connection: its number, in the order of acceptance, and its address."""

    number: int
    address: str


@dataclass(slots=True)
class _Claim:
    """The identity that a peer has claimed so far."""

    instance: str = ""
    server_id: str = ""
    challenge: bytes = b""
    proven: bool = False
    operator: bool = False

    def say(self, instance: str, server_id: str) -> None:
        """Stores the identity. Raises InvalidArgument if the peer claimed another one before."""
        if self.instance not in ("", instance) or self.server_id not in ("", server_id):
            raise InvalidArgument("a connection belongs to one server and one instance")
        self.instance, self.server_id = instance, server_id

    def exchange(self, challenge: bytes) -> bytes:
        """Replaces the challenge and returns the old one, so that each is good for one try."""
        before, self.challenge = self.challenge, challenge
        return before

    def believe(self) -> None:
        """Marks the peer as a server."""
        self.proven = True

    def permit(self) -> None:
        """Marks the peer as an operator."""
        self.operator = True


class Servers:
    """Checks the peers that call operations for servers. One per process; a connection is forgotten when it ends."""

    def __init__(self, settings: ListenSettings, runtime: Runtime) -> None:
        self._secret = settings.server_secret
        self._networks = [ipaddress.ip_network(network) for network in settings.server_networks]
        self._chance = runtime.chance
        self._clock = runtime.clock
        self._claims: dict[int, _Claim] = {}
        self._logged_us: dict[int, int] = {}
        self.fence = ServerFence()

    def hello(self, peer: Peer, instance: object, server_id: object) -> None:
        """Takes the id (12 hex digits) and the process instance (16) of a server. Raises InvalidArgument."""
        if not _is_hex(instance, INSTANCE_LENGTH) or not _is_hex(server_id, 12):
            raise InvalidArgument(f"instance has {INSTANCE_LENGTH} hex digits, and server_id 12")
        self._claim(peer).say(instance, server_id)

    def challenge(self, peer: Peer) -> bytes:
        """A new challenge, for which the peer must prove that it knows the secret; empty if no secret is set."""
        challenge = self._chance.randbytes(CHALLENGE_BYTES) if self._secret else b""
        self._claim(peer).exchange(challenge)
        return challenge

    def prove(self, peer: Peer, proof: object) -> None:
        """Accepts the peer as a server if this is the proof for its challenge. Raises ServerNotProven."""
        claim = self._claim(peer)
        challenge = claim.exchange(b"")
        if not self._secret or not is_proof(self._secret, challenge, proof):
            raise ServerNotProven(
                "this is not the proof for the challenge of this connection: compare listen.server_secret"
            )
        claim.believe()

    def check_operator(self, peer: Peer) -> None:
        """Returns if a peer may call operations for the operator of this server: it is near, or has proven that it knows
        the secret. Raises ServerNotProven."""
        claim = self._claims.get(peer.number)
        known = claim is not None and (claim.proven or claim.operator)
        if not known and not self._is_near(peer.address):
            raise ServerNotProven(
                "this is for the operator of the server: call it from a host in listen.server_networks"
            )

    def check_proven(self, peer: Peer) -> None:
        """Returns if a peer has proven that it knows the secret. A network is not enough on a server that asks its clients
        for tokens. Raises ServerNotProven."""
        if not self.is_proven(peer):
            raise ServerNotProven(
                "this server asks for tokens, so servers must prove themselves: set the same listen.server_secret on both"
            )

    def is_proven(self, peer: Peer) -> bool:
        """Whether a peer has proven that it is a server."""
        claim = self._claims.get(peer.number)
        return claim is not None and claim.proven

    def permit(self, peer: Peer) -> None:
        """Takes a peer for an operator, because its token says so."""
        self._claim(peer).permit()

    def check_redispatch(self, peer: Peer) -> None:
        """Returns if a peer may redispatch: it is an operator by its token, or `check` passes. Raises ServerNotProven."""
        claim = self._claims.get(peer.number)
        if claim is None or not claim.operator:
            self.check(peer)

    def check(self, peer: Peer) -> None:
        """Returns if a peer may call operations for servers. Raises ServerNotProven."""
        claim = self._claims.get(peer.number)
        if claim is not None and claim.proven:
            return
        if self._secret:
            raise ServerNotProven("prove first that you are a server, with the listen.server_secret of this one")
        if not self._is_near(peer.address):
            raise ServerNotProven(
                "no listen.server_secret is set here, and this peer is in none of listen.server_networks: "
                "set the same secret on both sides"
            )
        # Remembered, so that an address is parsed once per connection.
        self._claim(peer).believe()

    def admit(self, peer: Peer, server_id: int) -> bool:
        """Admits a request of a server. True if another process also claims its id.

        Raises ServerNotProven, InvalidArgument, Superseded, DuplicateServerId."""
        self.check(peer)
        claim = self._claims[peer.number]
        if claim.server_id and int(claim.server_id, 16) != server_id:
            raise InvalidArgument(f"this connection belongs to the server {claim.server_id}")
        now_us = self._clock.monotonic_us()
        try:
            return self.fence.admit(server_id, claim.instance, peer.number, now_us)
        except DuplicateServerId as error:
            if now_us - self._logged_us.get(server_id, -LOG_AGAIN_US) >= LOG_AGAIN_US:
                self._logged_us = {server_id: now_us} if len(self._logged_us) > 1024 else self._logged_us
                self._logged_us[server_id] = now_us
                events.error(
                    "delivery_refused",
                    "refused a delivery from {peer}: {reason}",
                    peer=peer.address,
                    reason=error.message,
                )
            raise

    def forget(self, peer: Peer) -> None:
        """Forgets a peer whose connection has ended."""
        self._claims.pop(peer.number, None)
        self.fence.close_connection(peer.number, self._clock.monotonic_us())

    def duplicates(self) -> list[dict[str, Any]]:
        """Server ids claimed by several processes, for `status`."""
        return self.fence.duplicates(self._clock.monotonic_us())

    def _claim(self, peer: Peer) -> _Claim:
        return self._claims.setdefault(peer.number, _Claim())

    def _is_near(self, where: str) -> bool:
        try:
            address = ipaddress.ip_address(where.rpartition(":")[0].strip("[]"))
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)


def _is_hex(value: object, length: int) -> TypeGuard[str]:
    return type(value) is str and len(value) == length and all(digit in "0123456789abcdef" for digit in value)
