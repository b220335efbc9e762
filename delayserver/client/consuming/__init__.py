"""A consumer that pulls from every node of a subject."""
