"""`python -m delayserver.web.child FD…`: the gateway as a child of `delayserver serve`.

It serves the listening sockets that it inherits as descriptors. The first line of its standard input is JSON: the address
of the server, and the settings. The end of that pipe means that the parent stops, or is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys

from delayserver.config.settings import HttpSettings, TlsSettings
from delayserver.logs.setup import set_up
from delayserver.web.gateway_process import Upstream, serve_http
from delayserver.web.secured import Secured


async def _until_parent_ends() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


def main() -> None:
    """Serve until the parent ends."""
    # The signals of a terminal go to parent and child. The parent decides when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.readline()
    if not line:
        return
    orders = json.loads(line)
    set_up(*orders["log"])
    listening = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]
    for each in listening:
        each.setblocking(False)
    settings = HttpSettings(**orders["http"])
    secured = Secured(TlsSettings(**orders["tls"]))
    upstream = Upstream(orders["server"], orders["token"], secured.to_server, pid=os.getppid())
    asyncio.run(serve_http(upstream, listening, settings, _until_parent_ends, secured))


if __name__ == "__main__":
    main()
