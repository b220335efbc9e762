"""One Spark for all tests of this folder that run in one process: its first queries take longer than a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session for small questions. It tries a task three times."""
    # Only tests that ask for it need pyspark.
    from tests.ops.audit.quick_spark import quick_session

    session = quick_session("local[2,3]")
    with pytest.MonkeyPatch.context() as patch:
        # A report that finds the session running sets it up for large logs: a query would then have four times the tasks.
        patch.setattr("ops.audit.session.start_session", quick_session)
        yield session
    session.stop()
