"""One file for each kind of target that a group delivers to."""
