"""Lists of mutants that survive the tests, with the reason for each.

`mutants_equivalent.toml` lists mutants that a caller cannot observe; they do not count. `mutants_left.toml` lists
mutants that a caller can observe but no test notices; they count as not noticed. Identical changes of one statement are
numbered.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mutants_changes import Mutant

EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
LEFT = Path(__file__).with_name("mutants_left.toml")
_FIELDS = ("module", "statement", "change", "why")


@dataclass(frozen=True)
class Listed:
    """One entry: the statement and the change that identify a mutant, and why it may survive."""

    module: str
    statement: str
    change: str
    why: str

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the mutant within its module."""
        return self.statement, self.change


def key(mutant: Mutant) -> tuple[str, str]:
    """Identifies a mutant within its module."""
    return mutant.statement, mutant.change


def read(file: Path) -> list[Listed]:
    """Read the entries of a file.

    Raises
    ------
    ValueError
        If an entry has fields other than module, statement, change and why, an empty field, or a duplicate.
    """
    found: list[Listed] = []
    for number, stored in enumerate(tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", []), 1):
        if tuple(sorted(stored)) != tuple(sorted(_FIELDS)) or not all(stored.values()):
            raise ValueError(f"{file.name}: entry {number} needs {', '.join(_FIELDS)}, none of them empty: {stored}")
        entry = Listed(**stored)
        if any((each.module, each.key) == (entry.module, entry.key) for each in found):
            raise ValueError(f"{file.name}: entry {number} is there twice: {entry.statement}: {entry.change}")
        found.append(entry)
    return found


def of_module(module: str, entries: Iterable[Listed]) -> set[tuple[str, str]]:
    """Keys of the entries of one module."""
    return {entry.key for entry in entries if entry.module == module}


def problems(module: str, all_mutants: list[Mutant], equivalent: list[Listed], left: list[Listed]) -> list[str]:
    """Problems with the entries of a module: they match no mutant, or are in both lists."""
    known = {key(mutant) for mutant in all_mutants}
    found = [
        f"{file.name}: no mutant of {module} is {statement!r}, {change!r}: remove the entry"
        for file, entries in ((EQUIVALENT, equivalent), (LEFT, left))
        for statement, change in sorted(of_module(module, entries) - known)
    ]
    both = of_module(module, equivalent) & of_module(module, left)
    return found + [f"{EQUIVALENT.name} and {LEFT.name} both have {each[0]!r}, {each[1]!r}" for each in sorted(both)]


def unexplained(module: str, survivors: Iterable[Mutant], left: list[Listed]) -> list[Mutant]:
    """Survivors that are not listed."""
    listed = of_module(module, left)
    return [mutant for mutant in survivors if key(mutant) not in listed]
