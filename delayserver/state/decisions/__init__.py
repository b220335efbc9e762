"""What is decided about messages and not written yet."""
