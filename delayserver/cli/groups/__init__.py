"""Commands of consumers and about their groups."""
