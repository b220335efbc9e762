"""schedule_log comes into memory, ahead of time and within bounds.

In the step that adds rows everything is asked anew: outcomes, overlays, holds, cursors, queues. Memory holds the
earliest rows of each window, and rows behind a key are read again.

Up to 256 overdue windows are read in one hop to a thread: of a small window the file costs more than its rows. A
window without a dispatch file needs no outcome index, because its outcomes are all in `Decided`.

A spilled window is read back in parts. `Spilled` has the first key that left memory, and one read takes a bounded
number of rows from there. So a group that was down for long costs no more memory than others.

The window of now is loaded before overdue ones, which are loaded while three eighths of memory are free. The backlog
does not wait for the rest of a minute that memory cannot hold: such a load drops only overdue rows, so neither load
drops rows that the other must read again.
"""
