"""The operation `policy`: how a node serves a consumer group."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import UNSET, UnsetType

from delayserver.protocol.schema.structs import Reply, says
from delayserver.protocol.schema.words import Group, OfGroup, Subject

_ATTEMPTS: Final = (
    "A message that is not acked after so many attempts becomes a dead letter; 0, the default: never. At most 10,000."
)
_CAP_MS: Final = (
    "The longest pause, in milliseconds. The default is that of the node, or `first_ms` where that is longer."
)
_FIRST_LEVEL: Final = "Pauses are the delay levels of the node, from this one on, and not the three above."
_TAGS: Final = "The filter: tags, or `*` for all. A consumer whose `pull` names another filter can set it back."
_FAILED_KEY: Final = (
    "`skip`, the default: a message with an order key becomes a dead letter after the last attempt, and its key goes on. "
    "`wait`: it comes again without end, and its key waits."
)
Unset: TypeAlias = UnsetType | None

Reset: TypeAlias = Annotated[bool, says("True: all fields go back to their defaults first.", False)]
LevelsMs: TypeAlias = Annotated[
    list[int], says("The pauses in order, in milliseconds, where the policy goes by delay levels.", [10_000, 30_000])
]
Attempts: TypeAlias = Annotated[
    int, says("A message is handed out so often before it becomes a dead letter; 0: without end.", 5)
]
FirstMs: TypeAlias = Annotated[
    int, says("The pause before the first redelivery, in milliseconds.", 1_000, left_out=True)
]
Factor: TypeAlias = Annotated[float, says("Each pause is so many times the one before.", 2.0, left_out=True)]
CapMs: TypeAlias = Annotated[int, says("The longest pause, in milliseconds.", 60_000, left_out=True)]


class PolicyFields(Reply, frozen=True, kw_only=True):
    """The fields of a policy. Where one is not set it is nil in a reply; to change a policy it goes back to its default."""

    attempts: Annotated[int, says(_ATTEMPTS, 5)] | Unset = UNSET
    first_ms: Annotated[int, says("The first pause, in milliseconds; by default that of the node.", 1_000)] | Unset = (
        UNSET
    )
    factor: Annotated[float, says("Each pause is so many times the last one: 1 to 100, by default 2.", 2.0)] | Unset = (
        UNSET
    )
    cap_ms: Annotated[int, says(_CAP_MS, 60_000)] | Unset = UNSET
    first_level: Annotated[int, says(_FIRST_LEVEL, 3)] | Unset = UNSET
    tags: Annotated[str, says(_TAGS, "paid || shipped")] | Unset = UNSET
    where: (
        Annotated[str, says("The filter: an expression over properties.", "price > 3 AND country = 'de'")] | Unset
    ) = UNSET
    failed_key: Annotated[str, says(_FAILED_KEY, "wait")] | Unset = UNSET


class ShowPolicy(OfGroup, frozen=True):
    """Shows the policy of a group, and before that changes it if the request says so."""

    # Not its fields: one that a node does not know, or that has a wrong value, is `policy_invalid`.
    set: Annotated[dict[str, Any], says("The fields to change.", expected="a map of the policy's fields")] | None = None
    reset: Reset = False


class AppliedPolicy(Reply, frozen=True):
    """What applies to a group, with the defaults of the node for what its policy does not set."""

    attempts: Attempts
    levels_ms: LevelsMs
    first_ms: FirstMs | None = None
    factor: Factor | None = None
    cap_ms: CapMs | None = None


class PolicyOfGroup(Reply, frozen=True):
    """The policy of a group at one node."""

    subject: Subject
    group: Group
    policy: Annotated[PolicyFields, says("The fields of the policy; nil where nothing is set.")]
    applies: Annotated[AppliedPolicy, says("What applies.")]
