"""`python -m ops.fuzz --target NAME --seconds N`: fuzz a parser with atheris. Exit 0: nothing was found, else 1."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ops.fuzz.session import Session, bound_process


def main() -> None:
    """Fuzzes one target until its time is over, then prints one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m ops.fuzz", description=__doc__)
    parser.add_argument("--target", help="what is fuzzed; --list names them")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the fuzzer; 0 draws one")
    parser.add_argument("--corpus", help="folder of inputs, read and added to (default: a new one, thrown away)")
    parser.add_argument("--findings", help="folder for the smallest input of each finding")
    parser.add_argument("--record", help="append the line of JSON to this file as well")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is missing: pip install --use-pep517 '.[fuzz]'")
    with atheris.instrument_imports(include=["delayserver", "store", "ops"]):
        from ops.fuzz.targets import TARGETS
    if options.list:
        print("\n".join(TARGETS))
        return
    if options.target not in TARGETS:
        sys.exit(f"--target {options.target}: no such target; there are {', '.join(TARGETS)}")
    target = TARGETS[options.target]
    with tempfile.TemporaryDirectory(prefix="delayserver-fuzz-") as temporary:
        corpus = Path(options.corpus or temporary)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(data)
        _fuzz(atheris, Session(target), options, str(corpus), temporary)


def _fuzz(atheris: Any, session: Session, options: argparse.Namespace, corpus: str, temporary: str) -> None:
    """Runs the engine. It never returns, so the last input within the time cleans up and ends the process."""
    mend = session.target.mend

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        changed: bytes = atheris.Mutate(data, len(data) + 64 if len(data) + 64 < size_max else size_max)
        return mend(changed)[:size_max] if seed % 4 else changed

    def one(data: bytes) -> None:
        session.one(data)
        if session.seconds >= options.seconds:
            shutil.rmtree(temporary)
            _end(session, options)

    arguments = [sys.argv[0], corpus, "-verbosity=0", "-max_len=8192", "-timeout=120", "-rss_limit_mb=4096"]
    arguments += [f"-seed={options.seed}"] if options.seed else []
    atheris.Setup(arguments, one, custom_mutator=mutate)
    bound_process()
    atheris.Fuzz()


def _end(session: Session, options: argparse.Namespace) -> None:
    line = json.dumps(
        {
            "target": session.target.name,
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(session.seconds, 1),
            "executions": session.executions,
            "accepted": session.accepted,
            "findings": {key: {"times": found.times, "text": found.text} for key, found in session.findings.items()},
        }
    )
    print(line, flush=True)
    if options.record:
        with open(options.record, "a", encoding="utf-8") as record:
            record.write(line + "\n")
    if options.findings:
        session.save(options.findings)
    os._exit(1 if session.findings else 0)


if __name__ == "__main__":
    main()
