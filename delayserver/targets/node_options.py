"""The options of a node beside its address and weight. Each kind of target has a subclass with its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeOptions:
    """The keys of `groups.nodes.options`: fields of type `str`, `int`, `bool`, or a tuple of texts.

    A field without a default must be given. `__post_init__` raises ValueError, which names the field, for values that the
    kind refuses. A field with `repr=False` is a secret: `config show` leaves it out."""
