"""Names of subjects, consumer groups and tags: their checks, and the codes that records hold."""
