"""The queue of each subject, and the progress of each consumer group in it."""
