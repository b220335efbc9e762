"""Shows messages and records to a person or a program."""
