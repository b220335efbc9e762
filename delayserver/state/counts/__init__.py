"""How many messages there are, by rule 3, and how late they were.

A checkpoint keeps counts with the offsets to which they were counted, so a start counts on from there.
"""
