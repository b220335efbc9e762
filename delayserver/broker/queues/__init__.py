"""The queue of each subject, and the places of each consumer group in it."""
