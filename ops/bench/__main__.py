"""``python -m ops.bench`` is the same as ``delayserver bench``."""

from __future__ import annotations

from ops.bench.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m ops.bench")
