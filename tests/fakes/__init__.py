"""Fakes that behave like the world, faults included. Used by unit tests and by the simulation."""
