"""Reports failures of our code inside Spark in one line, without the traces of Java and Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

from store.errors import StoreError

# A line of a Python traceback that names an error of ours: `store.errors.FormatError: /data/x: not a file ...`.
_OURS = re.compile(r"^\s*(?:store\.errors|ops\.audit[.\w]*|delayserver[.\w]*)\.(\w+Error|\w+): (.+)$", re.MULTILINE)
_VALUE_ERROR = re.compile(r"^\s*ValueError: (.+)$", re.MULTILINE)
_MEMORY = re.compile(r"java\.lang\.OutOfMemoryError|Java heap space")


@contextmanager
def one_line() -> Iterator[None]:
    """Turns an exception of Spark into a `click.ClickException` if it has a line of ours or a known cause."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from pyspark.errors import PySparkException, PySparkRuntimeError

    try:
        yield
    except (PySparkException, PySparkRuntimeError, Py4JError) as error:
        reason = reason_of(str(error))
        if reason is None:
            raise
        raise click.ClickException(reason) from None
    except (ValueError, StoreError) as error:  # a StoreError comes from the count without Spark
        raise click.ClickException(str(error)) from None


def reason_of(text: str) -> str | None:
    """The useful line of a Spark failure, or None."""
    for pattern in (_OURS, _VALUE_ERROR):
        found = pattern.findall(text)
        if found:
            last = found[-1]
            return last if isinstance(last, str) else last[1]
    if _MEMORY.search(text):
        return (
            "Spark ran out of memory: give it more with SPARK_DRIVER_MEMORY=4g, or choose a range with --from and --to"
        )
    return None
