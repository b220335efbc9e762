"""Accepts connections, decodes requests, calls operations and sends replies.

A server without tokens pays nothing for them: `Guard` wraps the handlers when there is a table of tokens. The rule of
an operation is a line in `RULES`, and a new operation without one fails a test. Subjects that stand in the request
are checked there; a refused message of several gives its place to its error.

A connection begins requests in the step that reads them while that step has time left: 2 ms for all connections, but
always one. The rest waits as bytes for a turn. A request with many items goes in slices of 0.3 ms or 128 items, one
turn in a pass, and a connection runs one such request at a time. A request of 10 ms or more could not be sliced: then
all turns pause as long as it took, so such requests get half of the loop at most.

While too much is unsent a connection begins no request, and its socket is not read. A pull without room leaves its
line and comes back when the client has read. A client that reads nothing for `unsent_timeout_ms` is cut off; the
bytes that its kernel acknowledged show it. `Unsent` knows which replies did not go out whole, and their deliveries
are nacked without a delay; they count as attempts.
"""
