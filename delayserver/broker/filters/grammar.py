"""The grammar of property expressions, and the parser that `lark` makes of it. Text in, a tree of tokens out.

The parser is LALR(1): its time is proportional to the length of the text, and nesting takes no stack of Python's.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken

from delayserver.broker.filters.fault import FilterError, TextPosition
from delayserver.broker.filters.number import UNSIGNED

# A word ends where no character of a name follows, and it comes before a name.
_END: Final = r"(?![\w$.])"
_WORDS: Final = ("AND", "OR", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL")
_GRAMMAR: Final = rf"""
start: any_of
any_of: all_of (_OR all_of)*
all_of: _condition (_AND _condition)*
_condition: negation | group | comparison | between | member | like | is_null
negation: NOT _condition
!group: "(" any_of ")"
comparison: _operand SIGN _operand
between: _operand [NOT] _BETWEEN _operand _AND _operand
member: _operand [NOT] _IN "(" _literal ("," _literal)* ")"
like: _operand [NOT] _LIKE TEXT [_ESCAPE TEXT]
is_null: _operand _IS [NOT] _NULL
_operand: NAME | QUOTED | _literal | "(" _operand ")"
_literal: NUMBER | TEXT

{chr(10).join([f"_{word}.2: /{word}{_END}/i" for word in _WORDS])}
NOT.2: /NOT{_END}/i
SIGN: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">"
NAME: /[A-Za-z_$][A-Za-z0-9_$.]*/
QUOTED: /"(?:[^"]|"")+"/
TEXT: /'(?:[^']|'')*'/
NUMBER: /[+-]?{UNSIGNED}{_END}/
%ignore /[ \t\r\n]+/
"""

# The names of terminals in errors, in the order in which an error names them. All others are words.
_CALLED: Final = {
    "NAME": "a property",
    "QUOTED": "a property",
    "NUMBER": "a number",
    "TEXT": "a text",
    "SIGN": "a comparison",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "$END": "the end",
}
_SHOWN_CHARACTERS_MAX: Final = 40


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic")


def parse_tree(text: str) -> Tree[Token]:
    """The tree of an expression. Raises FilterError with the first fault."""
    try:
        return _parser().parse(text)
    except UnexpectedCharacters as error:
        offset = error.pos_in_stream or 0
        raise FilterError(_no_token(text, offset), TextPosition.at(text, offset)) from None
    except UnexpectedToken as error:
        offset = len(text) if error.token.type == "$END" else int(error.token.start_pos or 0)
        expected = _expected(error.accepts or error.expected)
        raise FilterError(f"expected {expected}, found {_found(error.token)}", TextPosition.at(text, offset)) from None


def _no_token(text: str, offset: int) -> str:
    character = text[offset]
    if character in "'\"":
        what = "text" if character == "'" else "property name"
        empty = text.startswith('""', offset)
        return "a property name is empty" if empty else f"this {what} has no closing {character}"
    if character.isalpha():
        return f"a property name with {character!r} stands in double quotes"
    if character.isascii() and (character.isdigit() or character in "+-."):
        return "this is neither a number nor a name; a name with other characters stands in double quotes"
    return f"no part of an expression begins with {character!r}"


def _expected(terminals: Iterable[str]) -> str:
    known = dict.fromkeys([name for terminal, name in _CALLED.items() if terminal in terminals])
    words = sorted([terminal.removeprefix("_") for terminal in terminals if terminal not in _CALLED])
    names = [*known, *words]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _found(token: Token) -> str:
    if token.type == "$END":
        return "the end"
    shown = str(token)
    return shown if len(shown) <= _SHOWN_CHARACTERS_MAX else shown[:_SHOWN_CHARACTERS_MAX] + "…"
