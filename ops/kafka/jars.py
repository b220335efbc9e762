"""Fetches the jars of Kafka, once a machine, and checks each by its checksum.

`pom.xml` names what Maven fetches. `jars.txt` pins the outcome: every file with its SHA-256, as `sha256sum` writes it.
Maven knows the mirrors and proxies of a machine, so this module names no address.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
PINNED: Final = FOLDER / "jars.txt"
VARIABLE: Final = "KAFKA_JARS"
"""An environment variable: the folder to keep the jars in. By default it is below the user's cache folder."""
COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class JarsMissing(Exception):
    """The jars cannot be had here. The message says what to install or to set."""


def pins() -> dict[str, str]:
    """The SHA-256 of each jar, by file name."""
    lines = [line.split() for line in PINNED.read_text().splitlines()]
    return {name: digest for digest, name in lines}


def jars_folder() -> Path:
    """Where the jars are kept. Another list of jars gets another folder."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE]).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "delayserver" / f"kafka-{hashlib.sha256(PINNED.read_bytes()).hexdigest()[:16]}"


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each jar of a folder, by file name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jar"))}


def check(folder: Path) -> None:
    """Compare the jars of a folder with the list. Raises JarsMissing, which names those that differ."""
    found, wanted = digests(folder), pins()
    wrong = sorted({name for name, _ in found.items() ^ wanted.items()})
    if wrong:
        raise JarsMissing(
            f"{folder} has not what {PINNED.name} pins: {', '.join(wrong)}. Remove the folder, and fetch again"
        )


def fetch() -> Path:
    """The folder with all jars, each checked. Fetches them first where the folder is missing. Raises JarsMissing."""
    folder = jars_folder()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            jars = copy_dependencies(Path(made))
            check(jars)
            try:
                jars.rename(folder)
            except OSError:
                # Another process has fetched them meanwhile.
                if not folder.exists():
                    raise
    check(folder)
    return folder


def pin() -> None:
    """Fetch what `pom.xml` names, and write the list of it. Raises JarsMissing."""
    with tempfile.TemporaryDirectory() as made:
        found = digests(copy_dependencies(Path(made)))
    PINNED.write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()))


def copy_dependencies(made: Path) -> Path:
    """Let Maven put the jars into a folder of `made`, and return that folder. Raises JarsMissing."""
    if shutil.which("mvn") is None:
        raise JarsMissing(
            "Kafka's jars come by Maven, which is not installed: install it (Debian's package is maven), "
            f"or let {VARIABLE} name a folder with the jars of {PINNED}"
        )
    # Maven would make its folder of work beside the pom.
    shutil.copy(FOLDER / "pom.xml", made)
    jars = made / "jars"
    command = ["mvn", "-q", "-B", "-f", str(made / "pom.xml"), COPY, f"-DoutputDirectory={jars}"]
    done = subprocess.run(
        [*command, "-DincludeScope=runtime"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise JarsMissing(f"Maven could not fetch Kafka's jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return jars
