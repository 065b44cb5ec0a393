"""Keeps words that the project has retired out of names, messages and pages.

Each was a private word for something that the field has a term for. A word is refused as a part of a name in code, such
as ``upkeep`` in ``upkeep_s`` or ``UpkeepReport``, and as a word of comments, messages and pages.

    python scripts/check_words.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

RETIRED = {
    "bunch": "id bucket",
    "bunches": "id buckets",
    "upkeep": "maintenance",
    "unkept": "name the error that occurs",
}
"""A retired word, and what to write in its place."""

NAMES_ONLY = {
    "anew": "again",
    "keeper": "mutex, lease holder",
    "landed": "applied",
    "loose": "ungrouped",
    "proved": "await_...",
    "sight": "visibility, state",
    "sure": "quorum",
}
"""Words that prose may use in their ordinary sense, and names may not."""

PRODUCT_NAMES_ONLY = {
    "met": "observed, found",
    "told": "reported",
}
"""The same, where tests may say more: in the sources of crates, packages and benchmarks."""

PRODUCT = ("crates/", "python/", "tools/", "bench/")

SUFFIXES = (".rs", ".py", ".pyi", ".md", ".toml", ".js", ".html", ".sh")
EXCEPT = ("scripts/check_words.py", "tests/repository/test_words.py", "tests/data/")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TEXT = re.compile(r'"""[\s\S]*?"""|//.*|#(?!\[).*|"(?:\\.|[^"\\\n])*"')


def findings(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and advice of each retired word in a file."""
    found = list(_names(text, RETIRED))
    if not path.endswith(".md"):
        blank = _TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        found += _names(blank, NAMES_ONLY | (PRODUCT_NAMES_ONLY if path.startswith(PRODUCT) else {}))
    yield from sorted(found)


def _names(text: str, retired: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    for match in _WORD.finditer(text):
        for part in _PARTS.findall(match[0]):
            # The names of tests are sentences.
            if part.lower() in retired and match[0].count("_") < 5:
                yield text.count("\n", 0, match.start()) + 1, match[0], retired[part.lower()]


def main() -> int:
    """Print each finding as ``path:line: name: advice``; the exit status is 1 where there is one."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count = 0
    for path in listed.splitlines():
        if not path.endswith(SUFFIXES) or path.startswith(EXCEPT) or not (ROOT / path).is_file():
            continue
        for line, name, advice in findings(path, (ROOT / path).read_text(encoding="utf-8")):
            print(f"{path}:{line}: {name}: use {advice}")
            count += 1
    print(f"words: {count} retired ones" if count else "words: none that is retired")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
