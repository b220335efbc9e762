"""Messages that any shard may take avoid one that fails, for longer each time, and one at a time tries it again."""

from __future__ import annotations

from delayserver.client.calls.shard_doubts import AVOIDED_S_MAX, DOUBT_S, ShardDoubts


class Time:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_each_failed_trial_doubles_the_time_up_to_a_bound() -> None:
    time = Time()
    doubts = ShardDoubts(time)
    spans = []
    for _ in range(8):
        assert not doubts.avoided(1)
        doubts.fail(1, doubts.begin(1))
        begun_s = time.now_s
        while doubts.avoided(1):
            time.now_s += 0.5
        spans.append(time.now_s - begun_s)
    assert spans == [2, 4, 8, 16, 32, 60, 60, 60] and AVOIDED_S_MAX == 60
    assert not doubts.avoided(0)


def test_requests_that_were_on_their_way_together_count_once() -> None:
    time = Time()
    doubts = ShardDoubts(time)
    begun = [doubts.begin(1) for _ in range(50)]
    for each in begun:
        doubts.fail(1, each)
    time.now_s += DOUBT_S
    assert not doubts.avoided(1)


def test_others_keep_away_while_one_tries() -> None:
    time = Time()
    doubts = ShardDoubts(time)
    doubts.fail(1, doubts.begin(1))
    time.now_s += DOUBT_S
    assert not doubts.avoided(1)
    trial = doubts.begin(1)
    assert doubts.avoided(1)
    time.now_s += 15  # the attempts of the trial last so long
    doubts.fail(1, trial)
    time.now_s += 3.5
    assert doubts.avoided(1) and not doubts.doubted(1)
    doubts.trust(1)
    assert not doubts.avoided(1)


def test_a_look_without_an_answer_is_a_short_doubt_that_never_grows() -> None:
    time = Time()
    doubts = ShardDoubts(time)
    for _ in range(5):
        doubts.suspect(1)
        assert doubts.doubted(1) and doubts.avoided(1)
        time.now_s += DOUBT_S
        assert not doubts.doubted(1) and not doubts.avoided(1)


def test_a_trial_whose_caller_has_gone_keeps_others_away_no_longer() -> None:
    time = Time()
    doubts = ShardDoubts(time)
    doubts.fail(1, doubts.begin(1))
    doubts.begin(1)
    doubts.abandon(1)
    assert doubts.avoided(1), "the failure before it still counts"
    time.now_s += DOUBT_S
    assert not doubts.avoided(1)
    doubts.fail(1, doubts.begin(1))
    time.now_s += DOUBT_S
    assert doubts.avoided(1), "the second failure counts for longer"
    doubts.abandon(0)
    assert not doubts.avoided(0)
