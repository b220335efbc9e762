"""Runs the outbox example in a forked process, which need not import again what the example needs."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from typing import Final

# What the example imports.
PRELOADED: Final = ("psycopg", "delayserver.client")
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(list(PRELOADED))


def run_shop(*arguments: str) -> int:
    """`python -m ops.examples.outbox` with these arguments; its return code."""
    process = CONTEXT.Process(target=_run, args=(arguments,))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(arguments: tuple[str, ...]) -> None:
    sys.argv = ["outbox", *arguments]
    runpy.run_module("ops.examples.outbox", run_name="__main__", alter_sys=True)
