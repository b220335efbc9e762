"""How many messages there are, by rule 3, and how late they were."""
