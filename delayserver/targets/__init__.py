"""Delivery targets: what a node of a broker group is, and one file for each kind of target."""
