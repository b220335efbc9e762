"""Runs the outbox example in a forked process, which need not import again what the example needs."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from typing import Final

# A run takes a second or two.
SECONDS_MAX: Final = 60.0
# What the example imports.
PRELOADED: Final = ("psycopg", "delayserver.client")
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(list(PRELOADED))


def run_shop(*arguments: str) -> int:
    """`python -m ops.examples.outbox` with these arguments; its return code."""
    process = CONTEXT.Process(target=_run, args=(arguments,))
    process.start()
    process.join(SECONDS_MAX)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"the shop still runs after {SECONDS_MAX:.0f} s")
    return process.exitcode


def _run(arguments: tuple[str, ...]) -> None:
    sys.argv = ["outbox", *arguments]
    runpy.run_module("ops.examples.outbox", run_name="__main__", alter_sys=True)
