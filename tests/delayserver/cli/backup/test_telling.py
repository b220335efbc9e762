"""What `restore --to-time` says of outcomes and acks: those of a member stand in its message_log."""

from __future__ import annotations

import pytest

from delayserver.backup.restoring import Restored
from delayserver.cli.backup.restore import _tell


@pytest.mark.parametrize(
    ("of_member", "said"), [(True, "as of that moment too."), (False, "behind that moment is not in it")]
)
def test_a_restore_to_a_moment_says_what_it_lacks(
    capsys: pytest.CaptureFixture[str], of_member: bool, said: str
) -> None:
    _tell(Restored("0001", 5, 1_000_000, 2_000_000, None, 9, 3, 70, of_member), "new", 1500)
    assert "\nAll else is as of" in (told := capsys.readouterr().out) and said in told
