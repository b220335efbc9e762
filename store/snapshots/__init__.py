"""A copy of a data directory as it was at one moment: how it is taken beside a running server, and how it is described."""
