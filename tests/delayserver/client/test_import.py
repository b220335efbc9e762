"""The public names stand at the top of the package, and cost nothing until they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import delayserver
from delayserver.client import AsyncClient, Client, Message


def test_the_public_names_stand_at_the_top() -> None:
    assert (delayserver.Client, delayserver.AsyncClient, delayserver.Message) == (Client, AsyncClient, Message)
    with pytest.raises(AttributeError, match="Klient"):
        _ = delayserver.Klient


def test_importing_the_package_loads_no_client() -> None:
    code = "import delayserver, sys; sys.exit('numpy' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
