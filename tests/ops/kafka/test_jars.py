"""What is fetched for Kafka is what the list pins, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.kafka import jars


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two jars of a list that is pinned, named by the environment."""
    made = tmp_path / "jars"
    made.mkdir()
    for name in ("a.jar", "b.jar"):
        (made / name).write_text(name)
    pinned = tmp_path / "jars.txt"
    pinned.write_text("".join(f"{digest}  {name}\n" for name, digest in jars.digests(made).items()))
    monkeypatch.setattr(jars, "PINNED", pinned)
    monkeypatch.setenv(jars.VARIABLE, str(made))
    return made


def test_jars_that_fit_the_list_are_used_as_they_are(folder: Path) -> None:
    assert jars.fetch() == folder


def test_jars_that_do_not_fit_the_list_are_refused_by_name(folder: Path) -> None:
    (folder / "a.jar").write_text("another one")
    (folder / "b.jar").rename(folder / "c.jar")
    with pytest.raises(jars.JarsMissing, match=r"a\.jar, b\.jar, c\.jar"):
        jars.fetch()


def test_without_maven_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.VARIABLE, str(folder / "none"))
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(jars.JarsMissing, match="Debian's package is maven"):
        jars.fetch()


def test_what_maven_brings_is_refused_if_the_list_does_not_pin_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(
        '#!/bin/sh\nfor each in "$@"; do case $each in -DoutputDirectory=*) at=${each#*=};; esac; done\n'
        'mkdir "$at" && echo other >"$at/a.jar"\n'
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv(jars.VARIABLE, str(folder / "none"))
    with pytest.raises(jars.JarsMissing, match=r"a\.jar, b\.jar"):
        jars.fetch()
    assert not (folder / "none").exists()


def test_the_list_pins_the_versions_that_the_pom_names() -> None:
    pom = (jars.FOLDER / "pom.xml").read_text()
    named = re.findall(r"<artifactId>([^<]+)</artifactId><version>([^<]+)</version>", pom)
    assert len(named) == 2
    assert {f"{artifact}-{version}.jar" for artifact, version in named} < jars.pins().keys()
