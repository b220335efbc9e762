"""Repairs, rebuilds, and dispatches again."""
