"""`bench compare`: measures this project and its peers in turns, in one run on one machine, and computes ratios.

The harness measures the peers (see `peer`). Ours is measured twice: by the row of this bench ("ours", with prepared
columns in the client), and through the harness ("adaptor", whose client makes every message in Python). A ratio above 1
means that ours is better, for rates as well as for times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from delayserver.cli.terminal.output import print_json
from ops.bench.bursts import BURST_S, bursts_in_turns, check_pending, medians_of, ours, ratios_of, theirs
from ops.bench.figures import Options, rounded
from ops.bench.machine import describe_machine
from ops.bench.peer import HarnessMissing, load_harness, make_peer
from ops.bench.rows import BY_NAME
from ops.bench.server_process import fresh_directory

OURS, ADAPTOR = "ours", "adaptor"
PENDING: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PeerKind:
    """A peer: its adaptor in the harness, and the packages that it needs."""

    module: str
    class_name: str
    server: str
    debian_package: str
    python_module: str | None = None
    python_package: str | None = None
    root_needed: bool = False


PEERS: Final = {
    "redis": PeerKind("redis_peer", "Redis", "/usr/bin/redis-server", "redis-server", "redis", "redis hiredis"),
    "postgres": PeerKind(
        "pg_peer",
        "Postgres",
        "/usr/lib/postgresql/15/bin/postgres",
        "postgresql-15",
        "psycopg",
        "psycopg[binary]",
        root_needed=True,
    ),
    "beanstalkd": PeerKind("beanstalk_peer", "Beanstalk", "/usr/bin/beanstalkd", "beanstalkd"),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row against the peers. ``measure(harness, peer, options)`` calls the harness; ``field`` of its result counts.
    ``modes`` are the durable modes of the peers that support the row."""

    field: str
    measure: Callable[[Any, Any, Options], object]
    modes: dict[str, str]
    lower: bool = False
    messages: int | None = None
    shape: tuple[int, int] | None = None
    """Connections and batch size of a row that only sends, so that it can be compared in bursts."""


def _steady(rate: int) -> Callable[[Any, Any, Options], object]:
    return lambda harness, peer, options: harness.steady(peer, rate, options.seconds or 20)


def _thunder(messages: int) -> Callable[[Any, Any, Options], object]:
    # Floors of the load rates, from which the due second is computed. If it came too soon, the time is doubled.
    rates = {"redis": 40_000, "postgres": 40_000, "beanstalkd": 7_000, "delayserver": 100_000}

    def measure(harness: Any, peer: Any, options: Options) -> object:
        count = options.messages or messages
        return any(harness.thunder(peer, count, rates[peer.name] / slower) for slower in (1, 2, 4))

    return measure


def _pending(harness: Any, peer: Any, options: Options) -> object:
    return harness.pending_restart(peer, options.messages or PENDING)


INGEST_MODES: Final = {"redis": "always-v", "postgres": "unnest", "beanstalkd": "f0"}
CONSUME_MODES: Final = {"redis": "always-ack", "postgres": "unnest", "beanstalkd": "f0"}
# Without beanstalkd: with a sync per write it cannot take 10,000 per second, nor load a million before they are due.
FAST_MODES: Final = {"redis": "always-ack", "postgres": "unnest"}


def _ingest(connections: int, batch: int) -> Comparison:
    def measure(harness: Any, peer: Any, options: Options) -> object:
        return harness.ingest(peer, connections, batch, options.seconds or 4.0, cap=1_000_000_000)

    return Comparison("rate", measure, INGEST_MODES, shape=(connections, batch))


COMPARISONS: Final = {
    "ingest-c8b1000": _ingest(8, 1000),
    "ingest-sustained": dataclasses.replace(_ingest(8, 1000), shape=None),
    "ingest-c1b100": _ingest(1, 100),
    "ingest-c1b1": _ingest(1, 1),
    "ingest-c8b1": _ingest(8, 1),
    "steady-1000": Comparison("p99_ms", _steady(1000), CONSUME_MODES, lower=True),
    "steady-10000": Comparison("p99_ms", _steady(10_000), FAST_MODES, lower=True),
    "thunder-100k": Comparison("drain_s", _thunder(100_000), CONSUME_MODES, lower=True),
    "thunder-1m": Comparison("drain_s", _thunder(1_000_000), FAST_MODES, lower=True),
    "restart-10m": Comparison("serve_s", _pending, INGEST_MODES, lower=True, messages=PENDING),
}


def compare(
    options: Options,
    peers: str | None,
    harness_directory: str | None,
    names: str | None,
    as_json: bool,
    bursts: int | None = None,
) -> None:
    """Runs the comparisons and prints each when it is done. With ``bursts``, runs those of sending in so many bursts.
    Raises `click.ClickException` if a peer, a package or the harness is missing."""
    chosen = _chosen(peers, list(PEERS), "--peers")
    known = [name for name, comparison in COMPARISONS.items() if bursts is None or comparison.shape is not None]
    comparisons = _chosen(names, known, "--shapes")
    _require(chosen)
    with fresh_directory(options.data_dir) as directory:
        # Servers that drop root need access to their data in it.
        os.chmod(directory, 0o755)
        os.environ["PEERS_DIR"] = directory
        try:
            common = load_harness(harness_directory)
        except HarnessMissing as error:
            raise click.ClickException(str(error)) from error
        if not as_json:
            click.echo(describe_machine())
        for name in comparisons:
            comparison = COMPARISONS[name]
            if bursts is None:
                record = _compare_row(common, name, comparison, chosen, options)
            else:
                record = _compare_in_bursts(common, name, comparison, chosen, bursts)
            print_json(record) if as_json else click.echo(_line(record))


def _compare_row(common: Any, name: str, comparison: Comparison, chosen: list[str], options: Options) -> dict[str, Any]:
    row = BY_NAME[name]
    own = dataclasses.replace(options, messages=options.messages or comparison.messages)
    adaptor = make_peer(common)
    makers: dict[str, Callable[[], Any]] = {
        peer: _maker(PEERS[peer], comparison.modes[peer]) for peer in chosen if peer in comparison.modes
    }
    # The sustained figure has no adaptor, because the harness does not wait for the replay after the answers.
    if name != "ingest-sustained":
        makers = {ADAPTOR: lambda: adaptor("sync"), **makers}
    values: dict[str, list[float]] = {OURS: []}
    for _ in range(options.runs):
        values[OURS].append(row.measure(own).value)
        for who, make in makers.items():
            value = _run(common, make(), comparison, options)
            if value is None:
                click.echo(f"{name}: {who} did not finish: it loaded too slowly, or delivered nothing", err=True)
            else:
                values.setdefault(who, []).append(value)
    medians = {who: rounded(statistics.median(found)) for who, found in values.items()}
    ratios = {
        who: rounded(value / medians[OURS] if comparison.lower else medians[OURS] / value, 3)
        for who, value in medians.items()
        if who != OURS
    }
    return {
        "row": name,
        "value": min((ratios[who] for who in ratios if who != ADAPTOR), default=None),
        "unit": "ratio",
        "figure_unit": row.unit,
        "runs": options.runs,
        **medians,
        **{f"against_{who}": ratio for who, ratio in ratios.items()},
    }


def _compare_in_bursts(
    common: Any, name: str, comparison: Comparison, chosen: list[str], bursts: int
) -> dict[str, Any]:
    assert comparison.shape is not None
    connections, batch = comparison.shape
    peers = {who: _maker(PEERS[who], comparison.modes[who])() for who in chosen if who in comparison.modes}
    mine = make_peer(common)("sync")
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        for peer in (mine, *peers.values()):
            stack.callback(_end, peer)
            peer.fresh()
        senders = {OURS: ours(mine.address, batch)} | {who: theirs(common, peer, batch) for who, peer in peers.items()}
        rates = bursts_in_turns(senders, connections, batch, bursts)
        for who, peer in {OURS: mine, **peers}.items():
            check_pending(who, peer, rates[who])
    ratios = ratios_of(rates, OURS)
    return {
        "row": name,
        "value": min((rounded(median, 3) for _, median, _ in ratios.values()), default=None),
        "unit": "ratio",
        "figure_unit": BY_NAME[name].unit,
        "bursts": bursts,
        "burst_s": BURST_S,
        **{who: rounded(rate) for who, rate in medians_of(rates).items()},
        **{f"against_{who}": rounded(ratio[1], 3) for who, ratio in ratios.items()},
        **{f"against_{who}_quartiles": [rounded(ratio[0], 3), rounded(ratio[2], 3)] for who, ratio in ratios.items()},
    }


def _maker(kind: PeerKind, mode: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(kind.module), kind.class_name)(mode)


def _run(common: Any, peer: Any, comparison: Comparison, options: Options) -> float | None:
    """One measurement by the harness, or None without a result. Ends the server and removes its data."""
    rows: list[dict[str, Any]] = []
    with _captured(common, rows), contextlib.redirect_stdout(sys.stderr):
        try:
            comparison.measure(common, peer, options)
        except RuntimeError as error:
            # The harness raises this if a peer refused or did not start. A failure of ours is a bug, and is raised.
            if peer.name == "delayserver":
                raise
            click.echo(f"{peer.name}: {error}", err=True)
        finally:
            _end(peer)
    found = [row[comparison.field] for row in rows if comparison.field in row]
    return float(found[-1]) if found else None


def _end(peer: Any) -> None:
    """Ends the server and removes its data."""
    if peer.pids:
        peer.stop()
    shutil.rmtree(peer.dir, ignore_errors=True)


@contextlib.contextmanager
def _captured(common: Any, rows: list[dict[str, Any]]) -> Iterator[None]:
    """Appends the rows that the harness saves to ``rows`` instead, by replacing the function of its module."""
    original = common.save
    common.save = lambda peer, mode, metric, variant, row: rows.append(row)
    try:
        yield
    finally:
        common.save = original


def _chosen(text: str | None, known: list[str], option: str) -> list[str]:
    names = known if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.UsageError(f"{option}: {name!r} is unknown; known are {', '.join(known)}")
    return names


def _require(peers: list[str]) -> None:
    """Raises `click.ClickException` with all packages to install, if any peer lacks some."""
    servers = [PEERS[name].debian_package for name in peers if not Path(PEERS[name].server).exists()]
    packages = [
        str(PEERS[name].python_package)
        for name in peers
        if PEERS[name].python_module is not None and importlib.util.find_spec(str(PEERS[name].python_module)) is None
    ]
    missing = [f"apt-get install {' '.join(servers)}"] if servers else []
    missing += [f"pip install {' '.join(packages)}"] if packages else []
    if missing:
        raise click.ClickException(f"install first: {'; '.join(missing)} (or choose others with --peers)")
    for name in peers:
        if PEERS[name].root_needed and os.geteuid() != 0:
            raise click.ClickException(f"{name} is started as its own user, for which the bench must be root (--peers)")


def _line(record: dict[str, Any]) -> str:
    figures = [f"{who} {record[who]:g}" for who in (OURS, ADAPTOR, *PEERS) if who in record]
    ratios = [f"{who} {record[f'against_{who}']:g}x" for who in (ADAPTOR, *PEERS) if f"against_{who}" in record]
    return f"{record['row']:17} {record['figure_unit']:6} {'  '.join(figures)}   ratio of ours: {'  '.join(ratios)}"
