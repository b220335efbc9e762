"""msgspec's words for a document with wrong fields, in the words of JSON and of this API. Pure: text in, text out.

msgspec speaks of Python's types, and puts the place last. A text that is not known here is passed on as it is.
"""

from __future__ import annotations

import re
from typing import Final

_TYPES: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "bytes": "a text in base64",
    "datetime": "a time",
    "timedelta": "a duration",
}
_PLACE: Final = re.compile(r" - at (?:key in )?`(?P<place>[^`]*)`$")
_PATTERNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"Object missing required field `(\w+)`"), "the field {0} is missing"),
    (re.compile(r"Object contains unknown field `(.+)`", re.DOTALL), "there is no field {0}"),
    (re.compile(r"Expected `(\w+)` (>=|<=|<|>) (\S+)"), "must be {0} {1} {2}"),
    (re.compile(r"Expected `(\w+)` of length (>=|<=|==) (\d+)"), "must be {0} of length {1} {2}"),
    (re.compile(r"Expected `(\w+)` matching regex '(.*)'"), "must match {1}"),
    (re.compile(r"Expected `([\w |]+)`, got `([\w |]+)`"), "must be {0}, not {1}"),
    (re.compile(r"Expected `(\w+)`"), "must be {0}"),
    (re.compile(r"Invalid enum value (.*)", re.DOTALL), "may not be {0}"),
    (re.compile(r"Invalid base64 encoded string"), "must be a text in base64"),
    (re.compile(r"Integer value out of range"), "is too large a number"),
)


def sentence_of(text: str) -> str:
    """The text of a `msgspec.ValidationError` as a sentence, with the place of the field in front."""
    found = _PLACE.search(text)
    place, words = ("$", text) if found is None else (found["place"], text[: found.start()])
    for pattern, sentence in _PATTERNS:
        match = pattern.fullmatch(words)
        if match is not None:
            said = sentence.format(*[_plain(each) for each in match.groups()])
            break
    else:
        return text
    name = place.removeprefix("$").removeprefix(".")
    if said.startswith("the field") or said.startswith("there is no"):
        return f"{said} in {name}" if name else said
    return f"{name or 'the body'} {said}"


def _plain(types: str) -> str:
    """Names of types as words: `str | null` is "a text or null". Other texts stay."""
    names = types.split(" | ")
    return " or ".join([_TYPES[name] for name in names]) if all(name in _TYPES for name in names) else types
