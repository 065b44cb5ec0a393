"""The check of words finds retired words, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "check_words.py"
spec = importlib.util.spec_from_file_location("check_words", CHECK)
assert spec is not None
assert spec.loader is not None
check_words = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_words)


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("a.py", "upkeep_s = 1\n", ["upkeep_s"]),
        ("a.rs", "struct UpkeepReport;\n", ["UpkeepReport"]),
        ("a.md", "after the upkeep of a bunch\n", ["bunch", "upkeep"]),
        ("a.py", '"""After upkeep."""\n', ["upkeep"]),
        ("a.rs", "fn sure() {} // to be sure\n", ["sure"]),
        ("a.py", 'print("made sure of it")\n', []),
        ("a.md", "a loose end\n", []),
        ("crates/a.rs", "let told = 1; // it was told\n", ["told"]),
        ("python/a.py", "told = 1\n", ["told"]),
        ("tests/a.py", "told = 1\n", []),
        ("a.rs", "enum Seen { Over }\nlet seen = over();\n", ["Seen"]),
        ("a.py", "class TakeOver: ...\n", ["TakeOver"]),
        ("a.py", "take_over = 1\n", []),
        ("a.rs", "fn assure(measured: u8) { ensure!() }\n", []),
        ("a.py", "def test_a_try_that_had_landed_is_not_repeated() -> None: ...\n", []),
    ],
)
def test_retired_words_are_found_in_names_and_prose(path: str, text: str, names: list[str]) -> None:
    assert [name for _, name, _ in check_words.findings(path, text)] == names


def test_a_finding_has_its_line() -> None:
    assert list(check_words.findings("a.py", "x = 1\n\nbunch = 2\n")) == [(3, "bunch", "id bucket")]
