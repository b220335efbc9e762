"""delayserver: a delay-message service. Messages are handed over now and arrive when they are due."""

__version__ = "0.1.0"
