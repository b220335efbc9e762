"""A real server whose clock is behind. Its messages are overdue when the next server starts, as after a downtime.

python -m ops.bench.past_server DATA_DIR PORT BEHIND_MS
"""

from __future__ import annotations

import sys
from typing import Final

import trio

from delayserver.config.toml_file import load_settings
from delayserver.runtime.clock import SystemClock
from delayserver.runtime.runtime import Runtime
from delayserver.server.process import serve

READY: Final = "ready"


class ClockBehind(SystemClock):
    """The machine's clock minus some time."""

    def __init__(self, behind_ms: int) -> None:
        super().__init__()
        self._behind_ms = behind_ms

    def now_us(self) -> int:
        return super().now_us() - self._behind_ms * 1000

    def now_ms(self) -> int:
        return super().now_ms() - self._behind_ms


def main() -> None:
    """Serves until SIGTERM."""
    data_dir, port, behind_ms = sys.argv[1:]
    settings = load_settings(None, {"storage.data_dir": data_dir, "listen.port": int(port)})
    trio.run(
        lambda: serve(
            settings,
            runtime=Runtime.on(clock=ClockBehind(int(behind_ms))),
            ready=lambda _host, _port: print(READY, flush=True),
            signals=True,
        )
    )


if __name__ == "__main__":
    main()
