"""The operation `cluster`: what a member of a cluster knows of its shard, and the hand-over of the leadership."""

from __future__ import annotations

from typing import Annotated

from delayserver.protocol.schema.structs import Reply, Request, says


class ShowMember(Request, frozen=True, tag_field="action", tag="show"):
    """Says what this member knows of its shard."""


class SwitchPrimary(Request, frozen=True, tag_field="action", tag="switch"):
    """Hands the leadership over. Only the primary can."""

    member: Annotated[str, says("The member that leads then.", "b")]


class MemberStanding(Reply, frozen=True):
    """What a member knows of its shard."""

    shard: Annotated[int, says("The shard, counted from 0.", 0)]
    member: Annotated[str, says("The name of this member.", "a")]
    role: Annotated[str, says("`primary`, `standby`, or `taking_over`: it leads, and does not serve yet.", "standby")]
    epoch: Annotated[int, says("The leadership that it has read of last; 0: none yet.", 7)]
    primary: Annotated[str, says("Who leads in this epoch; empty where this member does not know the name.", "b")]
    lag_records: Annotated[
        int | None,
        says("Records of the shared log that this member has not applied; null: the log does not answer.", 0),
    ]
    lag_ms: Annotated[
        int, says("0 where nothing is missing; else how long ago the last record that it has read was written.", 0)
    ]
    log_version: Annotated[
        int,
        says("The version of the shared log where this member has read it. A program that does not read it stops.", 1),
    ] = 0
    damaged: Annotated[bool, says("Whether it knows of damage in its directory: then it never leads again.")] = False
    unreplayed_bytes: Annotated[
        int, says("Bytes of its message_log that it has not replayed. Before it leads it replays them.", 0)
    ] = 0
    front: Annotated[
        str, says("What is wrong with addresses of members, for people. Empty where nothing is.", "does not reach b")
    ] = ""


class LeadershipEnded(Reply, frozen=True):
    """The answer to a hand-over: this member decides nothing more."""

    epoch: Annotated[int, says("The leadership that has ended. The other member leads in the next one.", 7)]
