"""Starts a Spark session that can read our files. Checks Java; workers run this interpreter and find our packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
LOCAL = "local[*]"
# Driver memory of a local session, which does all the work. The target is a report over ten million messages in 4 GB.
LOCAL_MEMORY = "2g"
# Java compiles quickly instead of well, and one thread collects its garbage. Our tasks compute in Python, and a report is
# over before better code has paid for itself. A start takes half as long.
LOCAL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
# Of the log of Spark when it does not start.
LOG_SHOWN_BYTES = 4096


def check_java() -> None:
    """Raises `click.ClickException` with advice if Java is missing or too old, before Spark fills the screen."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no `java` on the PATH"
        raise click.ClickException(
            f"the report needs Java {JAVA_MIN} or newer, {where}: install it (Debian, Ubuntu: apt install "
            f"openjdk-{JAVA_MIN}-jre-headless; macOS: brew install openjdk@{JAVA_MIN})"
        )
    words = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', words)
    if version is None or int(version[1]) < JAVA_MIN:
        found = f"is Java {version[1]}" if version else "does not print its version"
        raise click.ClickException(
            f"the report needs Java {JAVA_MIN} or newer, {java} {found}: install a newer one and let JAVA_HOME name it"
        )


def start_session(master: str | None = None, *, formats: bool = True) -> SparkSession:
    """A new session, or the running one; with `formats` our formats are registered, which takes seconds.

    `master` None: the setting of spark-submit or SPARK_MASTER, else this machine. Raises `click.ClickException` without
    Java.
    """
    check_java()
    _share_the_interpreter()
    # This package does not use pandas, so the warning does not matter.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    from pyspark.sql import SparkSession

    from ops.audit.sources import register

    builder = SparkSession.builder.appName("delayserver audit").config("spark.ui.enabled", "false")
    local = master or os.environ.get("SPARK_MASTER") or ("" if _submitted() else LOCAL)
    if local:
        builder = builder.master(local)
    if local.startswith("local"):
        # So that a local session starts on a host whose name does not resolve, as in many containers.
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.memory", os.environ.get("SPARK_DRIVER_MEMORY", LOCAL_MEMORY))
        builder = builder.config("spark.driver.extraJavaOptions", LOCAL_JAVA)
        builder = builder.config("spark.sql.shuffle.partitions", "8")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if formats:
        register(session)
    return session


@contextmanager
def quiet() -> Iterator[None]:
    """Lets what Java, Spark and its workers write to stderr go into a file, if they are started in the block. If the block
    fails, the end of the file is shown."""
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(ours, 2)
            log.seek(max(log.seek(0, os.SEEK_END) - LOG_SHOWN_BYTES, 0))
            click.echo(log.read().decode(errors="replace"), err=True)
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def is_named(master: str | None) -> bool:
    """Whether the caller says where Spark runs: by the option, by SPARK_MASTER, or by spark-submit."""
    return bool(master or os.environ.get("SPARK_MASTER") or _submitted())


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _share_the_interpreter() -> None:
    """Sets the environment from which Java starts the workers of a local session: interpreter and search path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    root = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *[path for path in known if path]])
