"""The settings with which a directory is opened that no server works on: those that the directory must have."""

from __future__ import annotations

from dataclasses import replace

from delayserver.config.settings import Settings, StorageSettings
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError
from store.logs.window_span import find_span_ms
from store.tables import checkpoint


def settings_of(fs: FileSystem, root: str) -> Settings:
    """The defaults, with the windows of the directory."""
    span_ms = find_span_ms(fs, root)
    if not span_ms:
        try:
            found = checkpoint.read(fs, f"{root}/checkpoint")
        except CorruptionError:  # the opening reports it
            found = None
        span_ms = 0 if found is None else found.window_ms
    storage = StorageSettings(data_dir=root, dispatch_reserve_bytes=0, free_bytes_min=0)
    return Settings(storage=replace(storage, window_ms=span_ms) if span_ms else storage)
