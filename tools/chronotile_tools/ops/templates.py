"""Command templates of the operator, such as ``ssh {host} nodetool``.

Arguments are appended to the template. A program may pass them to a shell on another machine, which parses them again,
so they are quoted once for each ``ssh`` in the template, and at least once. Only programs known to run another program
with unchanged arguments, and templates that end with ``{words}``, get them unquoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import PurePath

from chronotile.errors import InvalidInputError

_WORDS = "{words}"
_REMOTE_SHELLS = frozenset({"ssh", "autossh", "rsh", "mosh", "dbclient", "plink"})
_DIRECT = frozenset({"nodetool", "docker", "podman", "nerdctl", "kubectl", "chronotile"})
_FIELD = re.compile(r"\{([^{}]*)\}")


class Template:
    """A command with placeholders.

    Parameters
    ----------
    text : str
        Command line with fields such as ``{host}``.
    option : str
        Option that set it, for messages.
    fields : collection of str
        Allowed fields, besides ``{words}`` as the last word.

    Raises
    ------
    InvalidInputError
        The template is empty, has an unclosed quote, or an unknown field.
    """

    def __init__(self, text: str, option: str, fields: Collection[str]) -> None:
        what = f"{option} {text!r}"
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise InvalidInputError(f"{what}: {error}", kind="invalid-request") from None
        self._verbatim = bool(self._words) and self._words[-1] == _WORDS
        if self._verbatim:
            self._words.pop()
        if not self._words:
            raise InvalidInputError(f"{what} is not a command", kind="invalid-request")
        self.fields = {name for word in self._words for name in _FIELD.findall(word)}
        strange = sorted(self.fields - set(fields))
        if strange:
            raise InvalidInputError(
                f"{what}: {{{strange[0]}}} means nothing here; use {', '.join(f'{{{one}}}' for one in sorted(fields))}"
                + (f", and {_WORDS} as the last word only" if strange[0] == "words" else ""),
                kind="invalid-request",
            )

    @property
    def _quotings(self) -> int:
        """Number of shells that parse the arguments before the target program."""
        shells = sum(PurePath(word).name in _REMOTE_SHELLS for word in self._words)
        if self._verbatim or (not shells and PurePath(self._words[0]).name in _DIRECT):
            return 0
        return max(1, shells)

    def command(self, words: Sequence[str] = (), **values: str) -> list[str]:
        """The command to run, without a local shell.

        Raises
        ------
        InvalidInputError
            A value starts with a dash, so a program would read it as an option.
        """
        for name, value in values.items():
            if value.startswith("-") and name in self.fields:
                raise InvalidInputError(f"{name} {value!r} would be read as an option", kind="invalid-request")
        quoted = {name: _quoted(value, self._quotings) for name, value in values.items()}
        filled = [_FIELD.sub(lambda field: quoted.get(field[1], field[0]), word) for word in self._words]
        return filled + [_quoted(word, self._quotings) for word in words]


def _quoted(word: str, times: int) -> str:
    for _ in range(times):
        word = shlex.quote(word)
    return word
