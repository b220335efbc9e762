"""A lasting failure is said now and then, with how often it was held back."""

from __future__ import annotations

from delayserver.client.consuming.said_lately import KINDS_MAX, SaidLately, held_back_words


def test_a_repeated_text_is_said_once_in_the_interval_and_counted() -> None:
    said = SaidLately(60.0)
    assert said.say("a", 0.0) == 0
    assert [said.say("a", 10.0), said.say("a", 59.9)] == [None, None]
    assert said.say("b", 59.9) == 0
    assert said.say("a", 60.0) == 2
    assert said.say("a", 119.0) is None
    assert said.say("a", 120.0) == 1


def test_the_oldest_text_is_forgotten_beyond_the_bound() -> None:
    said = SaidLately(60.0)
    for number in range(KINDS_MAX + 1):
        assert said.say(str(number), 0.0) == 0
    assert said.say("0", 1.0) == 0
    assert said.say(str(KINDS_MAX), 1.0) is None


def test_held_back_words_name_the_count() -> None:
    assert held_back_words(0) == ""
    assert "3 more" in held_back_words(3)
