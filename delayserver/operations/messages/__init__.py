"""Operations on accepted messages: find, cancel, reschedule, look up, end a transaction.

A request that names thousands of messages reads each file once and pauses in between. Each answer was true at some
moment since the request came.
"""
