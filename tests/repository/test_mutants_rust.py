"""Mutants of Rust code behind switches: each makes its change, and with all switches off the code is unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_rust", reason="tree-sitter-rust is not installed")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
try:
    import mutants_rust_switch as switch
finally:
    sys.path.remove(str(SCRIPTS))

SOURCE = """
fn less(a: i32, b: i32) -> bool {
    a < b
}
fn both(a: i32, b: i32) -> bool {
    a > 0 && less(a, b)
}
fn nested(a: i32, b: i32) -> i32 {
    // Lines stay where they are.
    a + b
        * 2
}
fn counted(a: i32) -> i32 {
    let mut sum = 1;
    sum += a;
    -sum
}
fn named(a: i32) -> &'static str {
    match a {
        0 => "none",
        n if n > 9 => "many",
        _ => "some",
    }
}
const fn fixed() -> i32 {
    1 + 2
}
fn main() {
    println!("{} {} {} {} {} {}", less(1, 1), both(2, 1), nested(3, 4), counted(5), named(0), named(10));
}
"""
PLAIN = "false false 11 -6 none many"
CHANGES = [
    # Text in the source, kind of change, replacement, and the output with the mutant.
    ("a < b", "FnValue", "true", "true true 11 -6 none many"),
    ("< b", "BinaryOperator", "<=", "true false 11 -6 none many"),
    ("&& less", "BinaryOperator", "||", "false true 11 -6 none many"),
    ("+ b", "BinaryOperator", "-", "false false -5 -6 none many"),
    ("* 2", "BinaryOperator", "+", "false false 9 -6 none many"),
    ("+= a", "BinaryOperator", "-=", "false false 11 4 none many"),
    ("-sum", "UnaryOperator", "", "false false 11 6 none many"),
    ("0 => ", "MatchArm", "", "false false 11 -6 some many"),
    ("n > 9", "MatchArmGuard", "false", "false false 11 -6 none some"),
]


def mutant(number: int, text: str, genre: str, replacement: str) -> switch.Mutant:
    before = SOURCE[: SOURCE.index(text)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return switch.Mutant(number, "a.rs", f"a.rs:{line}:{column}: {text}", genre, line, column, replacement)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled source with all mutants behind switches."""
    folder = tmp_path_factory.mktemp("switches")
    mutants = [mutant(number, *change[:3]) for number, change in enumerate(CHANGES)]
    text, placed = switch.with_switches(SOURCE, mutants)
    assert placed == set(range(len(CHANGES)))
    assert text.count("\n") == SOURCE.count("\n")
    (folder / "a.rs").write_text(switch.at_top(text), encoding="utf-8")
    subprocess.run(["rustc", "--edition", "2024", "a.rs"], cwd=folder, check=True, timeout=120)
    return folder / "a"


def printed(program: Path, **environment: str) -> str:
    done = subprocess.run(
        [program], env={**os.environ, **environment}, check=True, capture_output=True, text=True, timeout=10
    )  # fmt: skip
    return done.stdout.strip()


def test_each_switch_makes_its_change_alone(program: Path) -> None:
    assert printed(program) == PLAIN
    for number, change in enumerate(CHANGES):
        assert printed(program, MUTANT=str(number)) == change[3], change


def test_reached_mutants_are_recorded_without_changing_the_output(program: Path, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    assert printed(program, MUTANTS_REACHED=str(reached)) == PLAIN
    assert sorted(map(int, reached.read_text().split())) == list(range(len(CHANGES)))


def test_code_evaluated_at_compile_time_gets_no_switch() -> None:
    text, placed = switch.with_switches(SOURCE, [mutant(0, "+ 2", "BinaryOperator", "-")])
    assert (text, placed) == (SOURCE, set())


def test_a_compiler_error_is_attributed_to_its_mutant() -> None:
    text, _ = switch.with_switches(SOURCE, [mutant(7, "< b", "BinaryOperator", "&&&")])
    line = next(number for number, each in enumerate(text.split("\n"), start=1) if "&&&" in each)
    column = text.split("\n")[line - 1].index("&&&") + 1
    assert switch.nearest(text, line, column) == 7
    assert switch.nearest(text, 1, 1) is None
