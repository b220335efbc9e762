"""The operation that lists pending messages: from schedule_log, by pages.

The order of a list is that of units, and of parts in a unit. A unit is a window, or a day that has one file. A part is a
range of sequences of a unit, about `PART_ROWS` rows. Within a part, messages come in the order of their due times. A unit
with fewer rows is one part. So a list is in the order of due times, but for units that are larger.

A place says which sequences of a unit were listed, and up to which due time of a part. Rows of files never change, so a
message that waits all the time is listed once, whatever comes and goes meanwhile.
"""
