"""The one door to randomness: server ids and jitter. The simulation passes a seeded one instead."""

from __future__ import annotations

import random


def system_chance() -> random.Random:
    """Randomness of the operating system."""
    return random.SystemRandom()


def random_server_id(chance: random.Random) -> int:
    """A random server id of 48 bits, never 0."""
    return chance.randrange(1, 1 << 48)
