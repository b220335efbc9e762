"""Schedules as pure rules: when something recurs, and what a firing is. This room knows no clock, no disk and no network.

A rule gives wall times (`Cron`, `Once`) or moments (`Every`). A `Recurrence` joins a rule with a zone, with what the
changes of that zone's clock do, and with bounds. Its `next_moments` gives moments in milliseconds since 1970 UTC.

**Libraries.** `cronsim` parses cron expressions. It is maintained, typed, has no dependencies, and reads days as Debian's
cron does: in `0 16 1,2 * */2` both fields must match. Its iterator is not used: it walks by seconds and hours, and has no
choice for gap and overlap. `croniter` was given up in 2024 and found a new home later. It puts seconds last, takes either
field of days in that expression, and lost days of `0 0 8-9 * 0#2`.

`zoneinfo` knows the zones: those of the system, else those of the package `tzdata` (0.35 MB to download), so that a bare
container has them too.
"""
