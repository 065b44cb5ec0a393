"""Validate the schema statements of a backup. Statements run with the operator's permissions, so each is parsed token
by token: those that create tables, types, functions, aggregates and indexes of the keyspace are run, all others are
rejected.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chronotile.errors import InvalidInputError

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_MADE = {"TABLE": "table", "TYPE": "type", "FUNCTION": "function", "AGGREGATE": "aggregate", "INDEX": "index"}
"""Keywords after CREATE, and the record type that may contain such a statement."""
_SHOWN = 60


@dataclass(frozen=True)
class Token:
    """A token of a statement."""

    kind: str
    """``word`` (keyword, plain name or number), ``name`` (in double quotes), ``text`` (constant) or ``sign``."""
    value: str
    """Text: words in lower case, names without quotes."""
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these keywords."""
        return self.kind == "word" and self.value.upper() in words

    def is_sign(self, sign: str) -> bool:
        """Whether the token is this sign."""
        return self.kind == "sign" and self.value == sign


def tokens(text: str) -> list[Token]:
    """Split CQL into tokens, without comments.

    Raises
    ------
    InvalidInputError
        A quote or comment is unterminated.
    """
    found, place = [], 0
    while place < len(text):
        one = _token_at(text, place)
        if one is None:
            place += 1
            continue
        if one.kind != "comment":
            found.append(one)
        place = one.end
    return found


def _token_at(text: str, place: int) -> Token | None:
    """The token or comment at a position; None for white space."""
    letter, pair = text[place], text[place : place + 2]
    if pair == "$$":
        end = _end_of(text, "$$", place)
        return Token("text", text[place + 2 : end - 2], place, end)
    if letter in "'\"":
        end = _end_of_quoted(text, place)
        value = text[place + 1 : end - 1].replace(letter * 2, letter)
        return Token("name" if letter == '"' else "text", value, place, end)
    if pair == "/*":
        return Token("comment", "", place, _end_of(text, "*/", place))
    if pair in ("--", "//"):
        # Either kind of line end terminates it, as in Cassandra.
        ends = [end for end in (text.find("\n", place), text.find("\r", place)) if end >= 0]
        return Token("comment", "", place, min(ends, default=len(text)))
    if letter in _WORD:
        end = place
        while end < len(text) and text[end] in _WORD:
            end += 1
        return Token("word", text[place:end].lower(), place, end)
    return None if letter.isspace() else Token("sign", letter, place, place + 1)


def _end_of(text: str, closing: str, start: int) -> int:
    end = text.find(closing, start + 2)
    if end < 0:
        raise _endless(text, start)
    return end + len(closing)


def _end_of_quoted(text: str, start: int) -> int:
    """Position after a quoted constant or name; a doubled quote is an escaped quote."""
    quote, place = text[start], start + 1
    while (end := text.find(quote, place)) >= 0:
        if not text.startswith(quote, end + 1):
            return end + 1
        place = end + 2
    raise _endless(text, start)


def _endless(text: str, start: int) -> InvalidInputError:
    return InvalidInputError(f"unterminated quote or comment: {text[start : start + _SHOWN]!r}", kind="invalid-request")


def split_statements(text: str) -> list[list[Token]]:
    """Split text into statements at semicolons."""
    found: list[list[Token]] = [[]]
    for one in tokens(text):
        if one.is_sign(";"):
            found.append([])
        else:
            found[-1].append(one)
    return [statement for statement in found if statement]


def checked_statements(record: Mapping[str, str]) -> list[str]:
    """Statements of a schema record, ready to run: tables get new ids.

    Parameters
    ----------
    record : mapping
        ``keyspace``, ``type``, ``name`` and ``statement``.

    Raises
    ------
    InvalidInputError
        Kind ``refused``: a statement does something other than create the record's object.
    """
    text = record["statement"]
    try:
        found = [(statement, _purpose(statement, record["keyspace"])) for statement in split_statements(text)]
    except InvalidInputError as error:
        raise _refusal(record, str(error)) from None
    for statement, purpose in found:
        if purpose is None or not _fits(purpose, record):
            raise _refusal(record, repr(text[statement[0].start : statement[-1].end][:_SHOWN]))
    return [_without_id(text, statement) for statement, _ in found]


def refusals(records: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Reasons why schema records would be rejected, one sentence each."""
    for record in records:
        try:
            checked_statements(record)
        except InvalidInputError as error:
            yield str(error)


def _refusal(record: Mapping[str, str], what: str) -> InvalidInputError:
    return InvalidInputError(
        f"the schema of {record['type']} {record['keyspace']}.{record['name']} contains a forbidden "
        f"statement: {what}; a backup may only create tables, types, functions, aggregates and indexes of "
        f"{record['keyspace']}",
        kind="refused",
    )


@dataclass(frozen=True)
class _Purpose:
    type: str
    """Type of the record that may contain the statement."""
    subject: str
    """Object created or changed; for an index, its table."""


def _fits(purpose: _Purpose, record: Mapping[str, str]) -> bool:
    if purpose.type == "index":
        return record["type"] == "index" or (record["type"] == "table" and record["name"] == purpose.subject)
    if purpose.type in ("function", "aggregate"):
        # A function's record name ends with its argument types.
        return record["type"] == purpose.type
    return record["type"] == purpose.type and record["name"] == purpose.subject


def _purpose(statement: Sequence[Token], keyspace: str) -> _Purpose | None:
    """Purpose of a statement for a keyspace; None for forbidden statements."""
    if statement[0].is_word("ALTER"):
        return _of_alter(statement, keyspace)
    rest = list(statement[1:])
    if not statement[0].is_word("CREATE") or not rest:
        return None
    if rest[0].is_word("CUSTOM") and len(rest) > 1 and rest[1].is_word("INDEX"):
        rest.pop(0)
    what = rest.pop(0)
    if not what.is_word(*_MADE):
        return None
    rest = _after_condition(rest)
    if what.is_word("INDEX"):
        if rest and not rest[0].is_word("ON"):
            rest.pop(0)
        if not rest or not rest.pop(0).is_word("ON"):
            return None
    subject = _subject(rest, keyspace)
    return None if subject is None else _Purpose(_MADE[what.value.upper()], subject)


def _of_alter(statement: Sequence[Token], keyspace: str) -> _Purpose | None:
    """``ALTER TABLE k.t DROP c USING TIMESTAMP n`` and ``ALTER TABLE k.t ADD c type``. Nodes describe dropped columns
    with these statements, and older files of a table cannot be read without them."""
    if len(statement) < 7 or not statement[1].is_word("TABLE"):
        return None
    subject, rest = _subject(statement[2:], keyspace), statement[5:]
    dropped = rest[0].is_word("DROP") and len(rest) == 5 and rest[2].is_word("USING") and rest[3].is_word("TIMESTAMP")
    added = rest[0].is_word("ADD") and not any(one.is_word("WITH") for one in rest)
    if subject is None or rest[1].kind not in ("word", "name") or not (dropped or added):
        return None
    return _Purpose("table", subject)


def _after_condition(rest: list[Token]) -> list[Token]:
    words = ("IF", "NOT", "EXISTS")
    there = len(rest) > 3 and all(one.is_word(word) for one, word in zip(rest, words, strict=False))
    return rest[3:] if there else rest


def _subject(rest: Sequence[Token], keyspace: str) -> str | None:
    """Name in ``keyspace.name`` at the start of `rest`; None if the keyspace is another one or missing."""
    if len(rest) < 4 or rest[0].kind not in ("word", "name") or rest[2].kind not in ("word", "name"):
        return None
    if rest[0].value != keyspace or not rest[1].is_sign("."):
        return None
    return rest[2].value


def _without_id(text: str, statement: Sequence[Token]) -> str:
    """The statement without the table's own id (``WITH ID = ...``)."""
    start, end = statement[0].start, statement[-1].end
    for place, one in enumerate(statement[:-3]):
        if one.is_word("WITH") and statement[place + 1].is_word("ID") and statement[place + 2].is_sign("="):
            first = place + 3
            last = next((k for k in range(first, len(statement)) if statement[k].is_word("AND")), len(statement))
            if not _is_uuid(text[statement[first].start : statement[last - 1].end]):
                continue
            if last == len(statement):
                return text[start : one.start].rstrip()
            return text[start : one.end] + text[statement[last].end : end]
    return text[start:end]


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def flat_map(text: str) -> dict[str, str]:
    """Parse a map of constants, such as ``{'class': 'SimpleStrategy', 'replication_factor': '3'}``.

    Raises
    ------
    InvalidInputError
        The text is not a map of constants.
    """
    inner = tokens(text)
    if len(inner) < 2 or not inner[0].is_sign("{") or not inner[-1].is_sign("}"):
        raise InvalidInputError(f"{text[:_SHOWN]!r} is not a map of constants", kind="invalid-request")
    inner = [*inner[1:-1], Token("sign", ",", 0, 0)]
    found = {}
    for place in range(0, len(inner), 4):
        entry = inner[place : place + 4]
        shape = "".join(one.value if one.kind == "sign" else "x" for one in entry)
        if len(entry) != 4 or shape != "x:x," or any(one.kind == "name" for one in entry):
            raise InvalidInputError(f"{text[:_SHOWN]!r} is not a map of constants", kind="invalid-request")
        found[entry[0].value] = entry[2].value
    return found
