"""Backups of data directories: incremental copies in a folder or an object storage, and directories made of them."""
