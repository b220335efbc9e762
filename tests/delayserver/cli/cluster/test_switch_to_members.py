"""`cluster switch` names a member that cannot lead."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from delayserver.cli.cluster.switch import switch
from tests.delayserver.cli.cluster.members_there import at, standing


def test_a_damaged_member_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, {"a:1": standing("a", role="primary"), "b:1": replace(standing("b"), damaged=True)})
    done = CliRunner().invoke(switch, ("--server", "a:1,b:1", "--to", "b"))
    assert (done.exit_code, done.output) == (1, "Error: b is damaged, and never leads: choose another member\n")
