"""The records of a shared log, which all members of a shard follow: their bytes, and the rule which of them count."""
