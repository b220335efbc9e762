"""Filters of consumer groups: which messages of a subject a group gets. Pure: texts and columns in, masks out."""
