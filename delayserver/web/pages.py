"""The console: the files of `delayserver/web/console`, served from memory with a strict content security policy."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.responses import Response

CONSOLE: Final = Path(__file__).parent / "console"
PREFIX: Final = "/console/"

MEDIA: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS: Final[Mapping[str, str]] = {
    # Scripts, styles and calls of this origin alone. Trusted types: no script can turn a text into markup.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    # A browser asks each time whether its copy is still good. So an upgrade shows at once.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
"""The door adds those that every answer has."""


@dataclass(frozen=True, slots=True)
class _File:
    media: str
    plain: bytes
    zipped: bytes
    tag: str


class Pages:
    """The files, read once. A request names one of them; its path never reaches the disk."""

    def __init__(self, folder: Path = CONSOLE) -> None:
        self._files = {PREFIX + path.name: _load(path) for path in sorted(folder.iterdir()) if path.suffix in MEDIA}
        self._files["/"] = self._files.pop(PREFIX + "index.html")

    def find(self, method: str, path: str, headers: Mapping[str, str]) -> Response | None:
        """The answer of a request for a file; None if there is no such file, or for another method than GET and HEAD."""
        file = self._files.get(path)
        if file is None or method not in ("GET", "HEAD"):
            return None
        answer = dict(HEADERS, etag=file.tag)
        if file.tag in [tag.strip() for tag in headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=answer)
        if "gzip" in [name.partition(";")[0].strip() for name in headers.get("accept-encoding", "").split(",")]:
            return Response(file.zipped, headers=answer | {"content-encoding": "gzip"}, media_type=file.media)
        return Response(file.plain, headers=answer, media_type=file.media)


def _load(path: Path) -> _File:
    content = path.read_bytes()
    # Weak, since it stands for the plain and for the zipped bytes.
    tag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _File(MEDIA[path.suffix], content, gzip.compress(content, mtime=0), tag)
