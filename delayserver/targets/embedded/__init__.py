"""The kind of target that knows the broker of this process."""
