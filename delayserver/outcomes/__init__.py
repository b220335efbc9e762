"""Writes decided outcomes to dispatch_log.

The recorder decides nothing, and a failed sync ends the server. Outcomes of a burst are written up to 100 ms late,
because a writing thread competes with consumers for the GIL; with several groups they do not wait. A part that needs
a promised outcome rings `Decided.hurry`. A crash before the write leaves attempts in doubt, and the node says which
it has.
"""
