"""Each kind of error that msgspec raises for a document reaches a caller in the words of JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from delayserver.web.sentences import sentence_of


class Inner(msgspec.Struct):
    text: str


class Document(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    optional: str | None = None
    numbers: list[int] = []
    bounded: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    choice: Literal["x", "y"] = "x"
    short: Annotated[str, msgspec.Meta(min_length=1, max_length=3)] = "a"
    named: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,19}$")] = "1"
    texts: dict[str, str] = {}
    flag: bool = False
    either: int | str | None = None
    few: Annotated[list[int], msgspec.Meta(max_length=2)] = []
    share: float = 1.0
    blob: bytes = b""
    inner: Inner | None = None


CASES = [
    ({}, "the field number is missing"),
    ({"number": "x"}, "number must be a whole number, not a text"),
    ({"number": 1.5}, "number must be a whole number, not a number"),
    ({"number": None}, "number must be a whole number, not null"),
    ({"number": 1, "optional": 2}, "optional must be a text or null, not a whole number"),
    ({"number": 1, "numbers": [1, "x"]}, "numbers[1] must be a whole number, not a text"),
    ({"number": 1, "bounded": 9}, "bounded must be a whole number <= 5"),
    ({"number": 1, "bounded": 0}, "bounded must be a whole number >= 1"),
    ({"number": 1, "choice": "z"}, "choice may not be 'z'"),
    ({"number": 1, "short": ""}, "short must be a text of length >= 1"),
    ({"number": 1, "short": "long"}, "short must be a text of length <= 3"),
    ({"number": 1, "named": "x"}, "named must match ^[0-9]{1,19}$"),
    ({"number": 1, "texts": {"a": 1}}, "texts[...] must be a text, not a whole number"),
    ({"number": 1, "flag": 1}, "flag must be true or false, not a whole number"),
    ({"number": 1, "either": []}, "either must be a whole number or a text or null, not a list"),
    ({"number": 1, "few": [1, 2, 3]}, "few must be a list of length <= 2"),
    ({"number": 1, "share": "x"}, "share must be a number, not a text"),
    ({"number": 1, "blob": "###"}, "blob must be a text in base64"),
    ({"number": 1, "inner": {}}, "the field text is missing in inner"),
    ({"number": 1, "other": 1}, "there is no field other"),
    ([1], "the body must be an object, not a list"),
]


@pytest.mark.parametrize(("document", "sentence"), CASES, ids=[sentence for _, sentence in CASES])
def test_an_error_is_a_plain_sentence(document: Any, sentence: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(document), type=Document)
    said = sentence_of(str(caught.value))
    assert sorted(said.split()) == sorted(sentence.split()), said  # the order of alternatives is msgspec's
    assert "`" not in said


def test_words_that_are_not_known_are_passed_on() -> None:
    assert sentence_of("Something else - at `$.a`") == "Something else - at `$.a`"
