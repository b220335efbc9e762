"""Checks the key index: its manifest, and every block of its runs. The server makes a damaged index again by itself."""

from __future__ import annotations

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.findings import CORRUPT, MISSING, UNREADABLE, Findings
from store.errors import CorruptionError, FormatError, UnreadableError
from store.keys.key_manifest import FILE_NAME, KeyManifest, read_manifest
from store.keys.key_run import RunName, open_run
from store.keys.key_table import FOLDER

# A running server merges runs meanwhile: then the manifest is another one, and the check begins again.
_TRIES = 10
_MADE_AGAIN = "; the server makes the index of ids again"


def check_keys(taken: Capture, findings: Findings) -> None:
    """Read all of the index. A directory without one is that of an older program, or of one that is being made."""
    for _ in range(_TRIES):
        manifest = _manifest(taken, findings)
        if manifest is None or _runs_are_there(taken, manifest, findings):
            return
        if manifest == _manifest(taken, Findings()):
            break
    findings.add(MISSING, f"{taken.path}/{FOLDER}", 0, f"a run that {FILE_NAME} names is missing{_MADE_AGAIN}")


def _manifest(taken: Capture, findings: Findings) -> KeyManifest | None:
    path = f"{taken.path}/{FOLDER}/{FILE_NAME}"
    try:
        return read_manifest(taken.fs, f"{taken.path}/{FOLDER}", taken.server_id)
    except FileNotFoundError:
        return None
    except (CorruptionError, FormatError) as error:
        _add(findings, path, error)
        return None


def _runs_are_there(taken: Capture, manifest: KeyManifest, findings: Findings) -> bool:
    """Whether no file of a run is missing. Those that are there are read."""
    for name in manifest.names():
        try:
            _read(taken, name)
        except FileNotFoundError:
            return False
        except (CorruptionError, FormatError) as error:
            _add(findings, error.path, error)
    return True


def _read(taken: Capture, name: RunName) -> None:
    run = open_run(taken.fs, f"{taken.path}/{FOLDER}", taken.server_id, name)
    try:
        for _ in run.parts():
            pass
    finally:
        run.close()


def _add(findings: Findings, path: str, error: CorruptionError | FormatError) -> None:
    refused = isinstance(error, FormatError | UnreadableError)
    offset = error.offset if isinstance(error, CorruptionError) else 0
    findings.add(UNREADABLE if refused else CORRUPT, path, offset, error.detail + _MADE_AGAIN)
