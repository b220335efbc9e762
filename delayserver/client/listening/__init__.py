"""Listeners: functions that are called with messages as they come.

With threads, the event loop runs in a thread of its own. Pulls wait at every node of every subject, which would be a
thread each.

A source asks for few messages at first. So slow handlers hoard nothing, and few deliveries are given back. Acks leave
at once, then once in 5 ms: a lone ack does not wait, and 10,000 messages a second need 200 requests.

A stop ends pulls by `cancel_wait` and waits for their replies, so that no message stays leased to a listener that has
stopped.
"""
