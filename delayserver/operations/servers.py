"""The servers among the peers of this process: what they said, whether they have proven it, and which of them may act."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from delayserver.config.settings import ListenSettings
from delayserver.operations.server_fence import ServerFence
from delayserver.protocol.errors import DuplicateServerId, InvalidArgument, ServerNotProven
from delayserver.protocol.proof import CHALLENGE_BYTES, is_proof
from delayserver.runtime.runtime import Runtime

logger = logging.getLogger("delayserver")

INSTANCE_LENGTH = 16
# The log says again that two processes have one server id after this long.
LOG_AGAIN_US = 60_000_000


class Peer(NamedTuple):
    """The other end of a connection: a number, which counts connections in the order in which they were accepted, and the
    address."""

    number: int
    address: str


@dataclass(slots=True)
class _Claim:
    """What a peer has said so far."""

    instance: str = ""
    server_id: str = ""
    challenge: bytes = b""
    proven: bool = False

    def say(self, instance: str, server_id: str) -> None:
        """Raises InvalidArgument where it said something else before."""
        if self.instance not in ("", instance) or self.server_id not in ("", server_id):
            raise InvalidArgument("a connection belongs to one server and one instance")
        self.instance, self.server_id = instance, server_id

    def exchange(self, challenge: bytes) -> bytes:
        """Take the present challenge and leave another one: each is good for one try."""
        before, self.challenge = self.challenge, challenge
        return before

    def believe(self) -> None:
        """It is a server."""
        self.proven = True


class Servers:
    """Checks who asks for an operation of servers. One of a process; a connection is forgotten when it ends."""

    def __init__(self, settings: ListenSettings, runtime: Runtime) -> None:
        self._secret = settings.server_secret
        self._networks = [ipaddress.ip_network(network) for network in settings.server_networks]
        self._chance = runtime.chance
        self._clock = runtime.clock
        self._claims: dict[int, _Claim] = {}
        self._logged_us: dict[int, int] = {}
        self.fence = ServerFence()

    def hello(self, peer: Peer, instance: object, server_id: object) -> None:
        """A server that will deliver says its id (12 hex digits) and the instance of its process (16). Raises
        InvalidArgument."""
        if not _is_hex(instance, INSTANCE_LENGTH) or not _is_hex(server_id, 12):
            raise InvalidArgument(f"instance has {INSTANCE_LENGTH} hex digits, and server_id 12")
        self._claim(peer).say(instance, server_id)

    def challenge(self, peer: Peer) -> bytes:
        """What a peer has to prove next that it knows the secret; empty where no secret is set."""
        challenge = self._chance.randbytes(CHALLENGE_BYTES) if self._secret else b""
        self._claim(peer).exchange(challenge)
        return challenge

    def prove(self, peer: Peer, proof: object) -> None:
        """Take the peer for a server from now on, if this is the proof for its challenge. Raises ServerNotProven."""
        claim = self._claim(peer)
        challenge = claim.exchange(b"")
        if not self._secret or not is_proof(self._secret, challenge, proof):
            raise ServerNotProven(
                "this is not the proof for the challenge of this connection: compare listen.server_secret"
            )
        claim.believe()

    def check(self, peer: Peer) -> None:
        """Whether a peer may ask for operations of servers. Raises ServerNotProven."""
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
        # Remembered: an address is read once for each connection.
        self._claim(peer).believe()

    def admit(self, peer: Peer, server_id: int) -> bool:
        """Let a request of a server through; returns whether its id is claimed by another process as well.

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
                logger.error("refused a delivery from %s: %s", peer.address, error.message)
            raise

    def closed(self, peer: Peer) -> None:
        """The connection of a peer has ended."""
        self._claims.pop(peer.number, None)
        self.fence.closed(peer.number, self._clock.monotonic_us())

    def duplicates(self) -> list[dict[str, Any]]:
        """Server ids that several processes have claimed, for `status`."""
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
