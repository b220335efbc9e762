"""Builds all parts, owns the nursery, stops cleanly."""
