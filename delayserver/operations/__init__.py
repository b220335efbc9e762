"""What each request does."""
