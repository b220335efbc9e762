"""The broker as one object, its commit, its waiting pulls, its start."""
