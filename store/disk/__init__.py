"""The door to the disk: files, directories, room kept free."""
