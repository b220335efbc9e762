"""One file a request family: arguments are read into values, an operation is called, its answer becomes a reply."""
