"""A fake disk for every test that asks for `disk`."""

from __future__ import annotations

import pytest

from tests.fakes.disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()
