"""The broker as one object, its group commit, its waiting pulls, its start."""
