"""The lists of surviving mutants contain each survivor once, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
try:
    import mutants
    import mutants_changes
    import mutants_listed
finally:
    sys.path.remove(str(SCRIPTS))

SOURCE = "def twice(number):\n    return 2 * number\n"
STATEMENT = "return 2 * number"


def entry(change: str, statement: str = STATEMENT, module: str = "a") -> mutants_listed.Listed:
    return mutants_listed.Listed(module, statement, change, "It is a test.")


def write(file: Path, *entries: dict[str, str]) -> Path:
    lines = ["\n".join(["[[mutant]]", *(f"{name} = {value!r}" for name, value in each.items())]) for each in entries]
    file.write_text("\n\n".join(lines), encoding="utf-8")
    return file


@pytest.mark.parametrize("module", mutants.MODULES)
def test_each_listed_mutant_exists(module: str) -> None:
    source = mutants.source_of(module).read_text(encoding="utf-8")
    equivalent = mutants_listed.read(mutants_listed.EQUIVALENT)
    left = mutants_listed.read(mutants_listed.LEFT)
    assert mutants_listed.problems(module, mutants_changes.mutants(source), equivalent, left) == []


def test_each_listed_mutant_is_of_a_module_that_is_tried() -> None:
    listed = mutants_listed.read(mutants_listed.EQUIVALENT) + mutants_listed.read(mutants_listed.LEFT)
    assert {each.module for each in listed} <= set(mutants.MODULES)


def test_an_entry_that_matches_no_mutant_is_found_in_either_list() -> None:
    all_mutants = mutants_changes.mutants(SOURCE)
    sound, stale, other = entry("2 -> 3"), entry("2 -> 4"), entry("2 -> 4", module="b")
    assert mutants_listed.problems("a", all_mutants, [sound, other], []) == []
    assert mutants_listed.problems("a", all_mutants, [sound, stale], []) == [
        f"mutants_equivalent.toml: no mutant of a is {STATEMENT!r}, '2 -> 4': remove the entry"
    ]
    assert mutants_listed.problems("a", all_mutants, [], [entry("2 -> 3", statement="return number")]) == [
        "mutants_left.toml: no mutant of a is 'return number', '2 -> 3': remove the entry"
    ]


def test_an_entry_is_in_one_list() -> None:
    [problem] = mutants_listed.problems("a", mutants_changes.mutants(SOURCE), [entry("2 -> 3")], [entry("2 -> 3")])
    assert problem == f"mutants_equivalent.toml and mutants_left.toml both have {STATEMENT!r}, '2 -> 3'"


def test_a_survivor_that_is_not_listed_is_unexplained() -> None:
    all_mutants = mutants_changes.mutants(SOURCE)
    names = {each.change for each in all_mutants}
    left = [entry("2 -> 3"), entry("2 -> 1", module="b")]
    assert {each.change for each in mutants_listed.unexplained("a", all_mutants, left)} == names - {"2 -> 3"}


def test_each_mutant_of_a_call_over_several_lines_compiles() -> None:
    source = """
def chosen(items, name):
    return tuple(
        first(each) if each else second(each, name) for each in items
    )

def shown(given):
    return dict(
        [given, 1], {"a": given} if given else None
    )
"""
    for mutant in mutants_changes.mutants(source):
        assert compile(mutant.tree(), "a.py", "exec"), mutant.change


def test_an_entry_has_a_reason_and_is_there_once(tmp_path: Path) -> None:
    whole = {"module": "a", "statement": STATEMENT, "change": "2 -> 3", "why": "It is a test."}
    assert mutants_listed.read(write(tmp_path / "list.toml", whole)) == [entry("2 -> 3")]
    for broken in ({**whole, "why": ""}, {name: whole[name] for name in ("module", "statement", "change")}):
        with pytest.raises(ValueError, match=r"list.toml: entry 1 needs module, statement, change, why"):
            mutants_listed.read(write(tmp_path / "list.toml", broken))
    with pytest.raises(ValueError, match=r"list.toml: entry 2 is there twice"):
        mutants_listed.read(write(tmp_path / "list.toml", whole, whole))
