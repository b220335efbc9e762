"""The operation `reload`: the configuration is read again."""

from __future__ import annotations

from typing import Annotated

from delayserver.protocol.schema.structs import Reply, Request, says


class ReloadConfiguration(Request, frozen=True):
    """Take over what differs in the configuration."""


class Changes(Reply, frozen=True):
    """What a reload has changed."""

    changes: Annotated[
        list[str], says("What has changed, a sentence each.", ["route orders.*: groups near, before far"])
    ]
