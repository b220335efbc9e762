"""The values that clients take and return. No I/O."""
