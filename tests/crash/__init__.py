"""A real server process killed at named points, and the bad days a machine can have."""
