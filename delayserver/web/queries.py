"""The parameters of queries, as types."""

from __future__ import annotations

from msgspec import Struct

from delayserver.web.bodies import BodyForm


class LookupQuery(Struct, forbid_unknown_fields=True):
    """`body_as`: how the body is written."""

    body_as: BodyForm = "auto"
