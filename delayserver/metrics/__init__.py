"""Figures of the server and of its HTTP gateway in the format of Prometheus.

Label sets are bounded by the configuration, by the program, or by `ROWS_MAX`.
"""
