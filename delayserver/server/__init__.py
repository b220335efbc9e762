"""Builds all parts, owns the nursery, stops cleanly.

A node of an idle group gets no messages that could show that it is back, so `NodeProbes` asks it. The hub, the stages
and groups, the broker, redelivery, upkeep, remote nodes and each connection have a task; `DelayServer.run` starts
them. Worker threads change files, their counts, the id indexes, and the note of placed day rows
(`Positions.begin_drained`).
"""
