"""A disk that refuses every single call of a scenario in turn."""
