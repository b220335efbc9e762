"""What the reports of an audit take from directories before a session of Spark is needed."""

from __future__ import annotations

from typing import Any

from ops.audit.audit import Audit
from ops.audit.capture import DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG
from ops.audit.completeness import Evidence
from ops.audit.engines import InProcess
from ops.audit.log_frames import Range
from store.disk.filesystem import RealFileSystem


def evidence_of(*paths: str) -> Evidence:
    """What the files of these servers say of their windows, their counts and their damages. A report says it too, and takes
    seconds for the start of Spark."""
    no_session: Any = None  # only files are read
    audit = Audit(lambda: no_session, RealFileSystem(), paths, lambda _line: None)
    found = audit.directories()
    captured = audit._capture(found, [DISPATCH_LOG, SCHEDULE_LOG, MESSAGE_LOG])
    return audit._evidence(InProcess(), found, captured, Range(None, None))
