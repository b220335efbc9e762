"""The proof that a server knows the secret of a node: an HMAC over a challenge of the node. The secret is not sent.

Bytes in, bytes out. Another module decides which operations need a proof.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

CHALLENGE_BYTES: Final = 32
PROOF_BYTES: Final = 32
_PURPOSE: Final = b"delayserver prove 1\n"


def make_proof(secret: str, challenge: bytes) -> bytes:
    """HMAC-SHA256 with the secret (UTF-8) over the purpose and the challenge, 32 bytes."""
    return hmac.new(secret.encode(), _PURPOSE + challenge, hashlib.sha256).digest()


def is_proof(secret: str, challenge: bytes, proof: object) -> bool:
    """Whether `proof` belongs to this challenge. Compares in constant time. False for an empty challenge."""
    return (
        type(proof) is bytes
        and len(challenge) == CHALLENGE_BYTES
        and hmac.compare_digest(make_proof(secret, challenge), proof)
    )
