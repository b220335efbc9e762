"""Figures of the server and of its HTTP gateway in the format of Prometheus."""
