"""A client that was made, and used, before gevent patched the program, as `gunicorn --preload -k gevent` does it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.delayserver.client.fake_server import FakeServer

PROGRAM = """
import sys
from delayserver.client import Client
client = Client(sys.argv[1])
client.send("before", b"", due_ms=1)

from gevent import joinall, monkey, spawn
monkey.patch_all()

def send(number):
    for _ in range(20):
        client.send("after", b"", delay_ms=number)
    return 20

pull = spawn(client.pull, "nothing", "g", wait_s=0.2)
sent = [spawn(send, number) for number in range(5)]
joinall([pull, *sent], raise_error=True, timeout=60)
print(sum(each.value for each in sent), pull.value)
"""


def test_greenlets_share_a_client_from_before_the_patch(server: FakeServer) -> None:
    pytest.importorskip("gevent")
    run = [sys.executable, "-c", PROGRAM, server.address]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("100 []\n", "")
    assert sum(message.subject == "after" for message in server.messages) == 100
