"""`delayserver recover pending`: counts and lists messages without an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.recover.reading.capture import Capture
    from delayserver.recover.telling.pending_on_disk import PendingOnDisk
    from store.records.batches import MessageBatch

# Bars on a terminal; more minutes than that are shown in larger steps.
BARS_MAX = 40
BAR_COLUMNS = 40


@click.command
@shared.directory
@shared.time_range
@click.option("--subject", metavar="NAME", help="Only messages of this subject.")
@click.option("--list", "as_list", is_flag=True, help="The messages themselves, one a line.")
@click.option("--bodies", is_flag=True, help="With --list: their bodies too.")
@options.as_json
def pending(
    directory: str,
    from_ms: int | None,
    to_ms: int | None,
    subject: str | None,
    as_list: bool,
    bodies: bool,
    as_json: bool,
) -> None:
    """Count the messages of DIR that were accepted and have no outcome, by the minute in which they are due. Beside them,
    count the redeliveries that wait for their consumer groups.

    Times are of the local zone. Works beside a running server. Damage and missing files that hide messages or outcomes are
    named; then the exit code is 1.
    """
    shared.check_range(from_ms, to_ms)
    if bodies and not as_list:
        raise click.UsageError("--bodies belongs to --list")
    from delayserver.recover.checking.survey import hiding
    from delayserver.recover.reading.due_range import Range
    from delayserver.recover.reading.findings import Findings
    from delayserver.recover.telling.pending_on_disk import PendingOnDisk

    unread = Findings()
    with shared.captured(directory, unread) as taken:
        found = PendingOnDisk(taken, Range(from_ms or 0, to_ms or 1 << 62), subject)
        if as_list:
            found.run(lambda batch: _print_messages(taken, batch, bodies, as_json))
        else:
            with shared.advancing_bar("counting") as advance:
                found.run(None, advance)
            _print_json(taken, found) if as_json else _print_text(taken, found)
    shared.tell_unread([*hiding(unread), *found.unread])


def _print_messages(taken: Capture, batch: MessageBatch, bodies: bool, as_json: bool) -> None:
    from delayserver.config.units import format_instant
    from delayserver.recover.telling.pending_on_disk import message_maps

    for record in message_maps(taken, batch, bodies=bodies):
        if as_json:
            print_json(record)
        else:
            words = [
                record["receipt"],
                f"due {format_instant(record['due_ms'])}",
                record["subject"],
                record["message_id"],
                *(["prepared"] if "prepared" in record else []),
                *([f"redelivery for {record['redelivery_for']}"] if "redelivery_for" in record else []),
            ]
            click.echo(visible("  ".join(words + ([record["body"]] if bodies else []))))


def _print_json(taken: Capture, found: PendingOnDisk) -> None:
    for start, count in sorted(found.minutes.items()):
        print_json({"start_ms": start, "pending": count})
    for subject, count in sorted(found.subjects.items(), key=lambda item: -item[1]):
        print_json({"subject": taken.tables.subject_name(subject), "pending": count})
    for name, group, count in _redeliveries(taken, found):
        print_json({"subject": name, "group": group, "redeliveries": count})
    print_json({"pending": found.messages, "redeliveries": sum(found.redeliveries.values())})


def _print_text(taken: Capture, found: PendingOnDisk) -> None:
    from rich.console import Console

    from delayserver.config.units import format_instant

    terminal = Console().is_terminal
    steps = _steps(sorted(found.minutes.items()), BARS_MAX if terminal else len(found.minutes))
    most = max([count for *_, count in steps], default=1)
    for start, end, count in steps:
        until = "" if end == start else f" to {format_instant(end)[11:16]}"
        until = until if format_instant(start)[:10] == format_instant(end)[:10] else f" to {format_instant(end)[:16]}"
        bar = "  " + "█" * max(1, round(count / most * BAR_COLUMNS)) if terminal else ""
        click.echo(f"{format_instant(start)[:16]}{until}  {count:>12,}{bar}")
    for subject, count in sorted(found.subjects.items(), key=lambda item: -item[1])[:BARS_MAX]:
        click.echo(f"subject {visible(taken.tables.subject_name(subject))}: {count:,}")
    for name, group, count in _redeliveries(taken, found)[:BARS_MAX]:
        click.echo(visible(f"group {group} of {name}: {count:,} wait for redelivery"))
    waiting = sum(found.redeliveries.values())
    click.echo(f"{found.messages:,} pending" + (f", {waiting:,} wait for redelivery" if waiting else ""))


def _redeliveries(taken: Capture, found: PendingOnDisk) -> list[tuple[str, str, int]]:
    """Subject, group and count, the most first."""
    name = taken.tables.subject_name
    rows = sorted(found.redeliveries.items(), key=lambda item: -item[1])
    return [(name(subject), name(group), count) for (subject, group), count in rows]


def _steps(minutes: list[tuple[int, int]], steps_max: int) -> list[tuple[int, int, int]]:
    """Combines minutes into at most `steps_max` steps of (first minute, last minute, messages)."""
    size = -(-len(minutes) // max(steps_max, 1)) or 1
    parts = [minutes[place : place + size] for place in range(0, len(minutes), size)]
    return [(part[0][0], part[-1][0], sum([count for _, count in part])) for part in parts]
