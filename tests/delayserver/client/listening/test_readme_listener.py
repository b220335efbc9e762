"""The listener of README runs as it stands: it handles messages of its subjects, and ends cleanly."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import COMMAND_SECONDS_MAX, ROOT, serving

README = (ROOT / "README.md").read_text()


def program(address: str) -> str:
    """The only Python block of README with a listener, for a server at another address."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (block,) = [block for block in blocks if "Listener" in block]
    return block.replace("127.0.0.1:20801", address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_listener_of_readme_handles_messages_and_ends_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "program.py"
    with serving(tmp_path / "data") as server, Client(server.address) as client:
        client.send("orders", b"order 7", delay_ms=0)
        client.send("refunds.eu", b"refund 8", delay_ms=0)
        path.write_text(program(server.address))
        running = subprocess.Popen(
            [sys.executable, "-u", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
        )
        try:
            assert running.stdout is not None
            lines = {running.stdout.readline().strip() for _ in range(2)}
            assert lines == {"orders b'order 7'", "refunds.eu b'refund 8'"}
            running.send_signal(number)
            _, err = running.communicate(timeout=COMMAND_SECONDS_MAX)
        finally:
            running.kill()
            running.wait()
        assert (running.returncode, err) == (0, "")
        assert [group.lag for group in client.groups()] == [0, 0]
