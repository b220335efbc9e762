"""Commands about access tokens."""
