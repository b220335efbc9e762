"""Settings: their definitions, their units, and how they are read from a TOML file and from flags."""
