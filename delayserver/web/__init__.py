"""The HTTP gateway: JSON over HTTP for a server, in a process of its own. A client of the server's protocol.

Reading HTTP costs about 0.2 ms of Python a request. In the server's process the GIL would make deliveries late by
that much, again and again. A gateway that is attacked or ends takes nothing of the server with it. It is nice to the
server (5): where both want a processor, a delivery goes first.

It is uvicorn on asyncio, not hypercorn on trio. On the same busy machine uvicorn answered 4,000 requests a second,
hypercorn on trio 480. `http_protocol` and `handshakes` have the bounds that uvicorn lacks; asyncio takes 300 KiB for
each handshake, so uvicorn's own TLS is not used.

A GET changes nothing. A stream of deliveries takes messages, so its GET needs a header that no link can send.
Loopback has no bound of its own, because a proxy on this machine makes the connections of all its clients. A request
without a token is refused before its body is read.

The console is modules of JavaScript as a browser takes them, without a build or a library. `live.js` hears the
figures, `history.js` remembers two minutes of them, `clock.js` knows the server's time, and each panel has a file.
Texts of messages become text nodes alone, and trusted types forbid the rest. `trouble.js` is the one table of
possible faults; a test compares it with the runbook.
"""
