"""For modules that import pyspark: without it they are visibly skipped; in CI (CI=true) they fail."""

from __future__ import annotations

import importlib
import os

import pytest


def require_pyspark() -> None:
    """Skip the calling module, or fail, where pyspark is not installed."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        importlib.import_module("pyspark")
    else:
        pytest.importorskip("pyspark", reason="pyspark is not installed: pip install --use-pep517 '.[audit]'")
