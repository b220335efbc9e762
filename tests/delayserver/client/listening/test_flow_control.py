"""How much each source of a listener may ask for: bounds in messages and bytes, room for quiet sources, growing windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayserver.client.listening.flow_control import Ask, FlowControl, FlowShare


def pull(flow: FlowControl, share: FlowShare, sizes: list[int]) -> None:
    ask = flow.next_ask(share)
    assert ask is not None
    flow.begin_pull(share, ask)
    flow.end_pull(share, sizes)


def handle_all(flow: FlowControl, share: FlowShare, size: int) -> None:
    while share.held_messages:
        flow.start_handler(share)
        flow.end_handler(share, size)


def test_a_lone_source_asks_for_its_window_and_half_of_the_bytes() -> None:
    flow = FlowControl(1000, 10_000, 16)
    assert flow.next_ask(flow.join()) == Ask(16, 5_000)


def test_while_a_pull_is_under_way_there_is_no_other() -> None:
    flow = FlowControl(1000, 10_000, 16)
    share = flow.join()
    flow.begin_pull(share, Ask(16, 100))
    assert flow.next_ask(share) is None
    flow.fail_pull(share)
    assert flow.next_ask(share) == Ask(16, 5_000)


def test_a_source_asks_again_when_half_of_it_has_begun() -> None:
    flow = FlowControl(1000, 1_000_000, 16)
    share = flow.join()
    pull(flow, share, [10] * 16)
    for _ in range(7):
        flow.start_handler(share)
        assert flow.next_ask(share) is None
    flow.start_handler(share)
    ask = flow.next_ask(share)
    assert ask is not None and ask.messages == 8


def test_the_window_grows_while_handlers_wait_for_a_backlog_and_halves_when_messages_wait() -> None:
    flow = FlowControl(1000, 1_000_000, 16)
    share = flow.join()
    asked = []
    for _ in range(5):
        ask = flow.next_ask(share)
        assert ask is not None
        asked.append(ask.messages)
        flow.begin_pull(share, ask)
        flow.end_pull(share, [10] * ask.messages)
        handle_all(flow, share, 10)
    assert asked == [16, 16, 64, 256, 1000]
    flow.slow_down(share)
    ask = flow.next_ask(share)
    assert ask is not None and ask.messages == 500
    pull(flow, share, [10])
    handle_all(flow, share, 10)
    for _ in range(12):
        flow.slow_down(share)
    assert share.window == 1


def test_a_trickle_leaves_the_window_alone() -> None:
    flow = FlowControl(1000, 1_000_000, 16)
    share = flow.join()
    for _ in range(5):
        pull(flow, share, [10] * 3)
        handle_all(flow, share, 10)
    assert share.window == 16


def test_large_messages_fill_a_pull_by_their_bytes() -> None:
    flow = FlowControl(1000, 1_000_000, 16)
    share = flow.join()
    pull(flow, share, [300_000])
    assert share.backlog


def test_a_source_with_running_bytes_over_its_part_waits_for_their_end() -> None:
    flow = FlowControl(1000, 1000, 16)
    share = flow.join()
    pull(flow, share, [900])
    flow.start_handler(share)
    assert flow.next_ask(share) == Ask(16, 100)  # the backlog allows all bytes
    flow.begin_pull(share, Ask(16, 100))
    flow.end_pull(share, [400])
    flow.start_handler(share)
    assert flow.next_ask(share) is None
    flow.end_handler(share, 900)
    assert flow.next_ask(share) is not None


def test_a_quiet_source_gets_its_next_message_beside_one_that_fills_all() -> None:
    flow = FlowControl(100, 10_000, 1000)
    busy, quiet = flow.join(), flow.join()
    for _ in range(20):
        ask = flow.next_ask(busy)
        if ask is None:
            break
        flow.begin_pull(busy, ask)
        flow.end_pull(busy, [100] * ask.messages)
    assert busy.held_messages >= 50
    assert flow.next_ask(quiet) == Ask(25, 2500)


def test_a_thousand_quiet_sources_ask_for_one_message_each_and_leave_half_to_one_with_a_backlog() -> None:
    flow = FlowControl(1000, 1_000_000, 20)
    shares = [flow.join() for _ in range(1000)]
    for share in shares[1:]:
        assert flow.next_ask(share) == Ask(1, 500)
        flow.begin_pull(share, Ask(1, 500))
    busy = shares[0]
    assert flow.next_ask(busy) == Ask(1, 500)
    pull(flow, busy, [10])
    handle_all(flow, busy, 10)
    ask = flow.next_ask(busy)
    assert ask == Ask(20, 500_500), "its window, out of the other half"


@given(st.data())
def test_flow_control_never_exceeds_its_bounds_and_an_empty_source_may_always_ask(data: st.DataObject) -> None:
    messages_max = data.draw(st.integers(1, 50))
    bytes_max = data.draw(st.integers(1, 5000))
    flow = FlowControl(messages_max, bytes_max, data.draw(st.integers(1, 60)))
    shares: list[FlowShare] = []
    sizes: dict[FlowShare, list[int]] = {}
    running: dict[FlowShare, list[int]] = {}
    most_sources = 0
    for _ in range(data.draw(st.integers(1, 60))):
        step = data.draw(st.sampled_from(["join", "ask", "answer", "fail", "start", "end", "back", "slow", "leave"]))
        if step == "join" and len(shares) < 6:
            share = flow.join()
            shares.append(share)
            sizes[share], running[share] = [], []
            most_sources = max(most_sources, len(shares))
        if not shares:
            continue
        share = data.draw(st.sampled_from(shares))
        held, runs = sizes[share], running[share]
        if step == "ask":
            ask = flow.next_ask(share)
            if share.asked is None and not held and not share.held_bytes:
                assert ask is not None
            if ask is not None:
                assert 1 <= ask.messages <= messages_max and 1 <= ask.bytes <= bytes_max
                flow.begin_pull(share, ask)
        elif step == "answer" and share.asked is not None:
            ask = share.asked
            count = data.draw(st.integers(0, ask.messages))
            brought: list[int] = []
            for _ in range(count):
                size = data.draw(st.integers(1, 800))
                if brought and sum(brought) + size > ask.bytes:
                    break
                brought.append(size)
            flow.end_pull(share, brought)
            held.extend(brought)
        elif step == "fail" and share.asked is not None:
            flow.fail_pull(share)
        elif step == "start" and held:
            runs.append(held.pop(0))
            flow.start_handler(share)
        elif step == "end" and runs:
            flow.end_handler(share, runs.pop())
        elif step == "back" and held:
            flow.give_back(share, held.pop(0))
        elif step == "slow":
            flow.slow_down(share)
        elif step == "leave" and not held and not runs and share.asked is None:
            flow.leave(share)
            shares.remove(share)
        flow.check_invariants()
        asked = sum(each.asked.messages for each in shares if each.asked is not None)
        # Beyond the bound each source has at most the one message that it may always ask for.
        assert flow.held_messages + asked <= messages_max + 2 * most_sources
        assert flow.held_messages == sum(len(sizes[each]) for each in shares)
        assert flow.held_bytes == sum(sum(sizes[each]) + sum(running[each]) for each in shares)
