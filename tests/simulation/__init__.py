"""Deterministic simulation: one seed runs the real server, protocol and broker under a simulated clock, disk and network."""
