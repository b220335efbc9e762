"""The key index: which messages have an id, over everything that waits. A log-structured merge tree (O'Neil et al., 1996).

Rows lie in sorted runs on disk. Memory holds the first key of each block, filters of small runs, and the rows since the
last run. The index only proposes messages: the caller compares the bytes of their ids.
"""
