"""The files of the broker: store, progress, checkpoint."""
