"""The names that a token has added count over restarts, but for fewer than `STEP`."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayserver.names.names_of_tokens import STEP, NamesOfTokens
from store.disk.filesystem import RealFileSystem
from store.tables.names import OWN, SUBJECT, TAG, Names

ADDED = st.lists(
    st.tuples(st.sampled_from(["one", "two"]), st.sampled_from([SUBJECT, TAG]), st.integers(1, 2 * STEP)), max_size=12
)


@given(ADDED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_stop_at_any_moment_forgets_fewer_than_a_step(tmp_path: Path, added: list[tuple[str, int, int]]) -> None:
    directory = tmp_path / "data"
    directory.mkdir(exist_ok=True)
    (directory / "names.log").unlink(missing_ok=True)
    names = Names.open(RealFileSystem(), str(directory), 1)
    counts, true = NamesOfTokens(names), dict[tuple[str, int], int]()
    for token_id, kind, number in added:
        counts.add(token_id, kind, number)
        true[token_id, kind] = true.get((token_id, kind), 0) + number
        if text := counts.to_write(token_id, kind):
            names.intern(OWN, text)
            counts.mark_written(token_id, kind)
        assert counts.to_write(token_id, kind) == []
    assert names.count(OWN) <= sum(true.values()) / STEP
    names.close()
    again = Names.open(RealFileSystem(), str(directory), 1)
    kept = NamesOfTokens(again)
    for (token_id, kind), total in true.items():
        assert total - STEP < kept.added(token_id, kind) <= total == counts.added(token_id, kind)
    assert kept.added("three", SUBJECT) == 0
    again.close()


def test_a_member_that_leads_counts_what_the_log_has_brought_meanwhile(tmp_path: Path) -> None:
    names = Names.open(RealFileSystem(), str(tmp_path), 1)
    counts = NamesOfTokens(names)
    names.intern(OWN, ["added 0 64 one", "added 0 640 one"])
    counts.read()
    assert counts.added("one", SUBJECT) == 640
    assert counts.to_write("one", SUBJECT) == []
    names.close()


def test_other_names_of_the_server_are_no_totals(tmp_path: Path) -> None:
    names = Names.open(RealFileSystem(), str(tmp_path), 1)
    names.intern(OWN, ["transactions", "added 0 64 one"])
    assert NamesOfTokens(names).added("one", SUBJECT) == STEP
    names.close()
