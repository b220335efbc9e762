"""The connections of clients, and the memory that they hold."""
