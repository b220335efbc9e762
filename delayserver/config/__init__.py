"""Settings: what they are, and how a TOML file, the environment and options give them."""
