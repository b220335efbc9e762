"""One file per request family: reads arguments into values, calls an operation, makes the reply of its answer."""
