"""The recovery tools: reading, reconciling and repairing a data directory. The commands are in `delayserver.cli`.

Tools that only read work beside a running server. Tools that change files take the lock of the directory first.

`repair` and `rebuild` share one plan and one applier. Each finds its own steps. The applier alone writes, and can be
run again after an interruption. The audit captures directories in its own way, because it sends parts of files to
Spark tasks; the tools hold files open and go around damage.
"""
