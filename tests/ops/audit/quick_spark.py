"""A Spark session for a few thousand rows: without the compilers that pay off after millions."""

from __future__ import annotations

from typing import Any

from ops.audit.session import start_session


def quick_session(master: str | None, *, formats: bool = True) -> Any:
    """A local session, or the running one; queries are interpreted."""
    session = start_session(master, formats=formats)
    for name, value in (
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.adaptive.enabled", "false"),
    ):
        session.conf.set(name, value)
    return session
