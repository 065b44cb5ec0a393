"""Finds retired words in names, messages and pages.

Each is a word of the project's own for which the field has a term. A retired word must not occur in comments, messages
and pages, nor as a part of a name in code, such as ``upkeep`` in ``upkeep_s`` or ``UpkeepReport``.

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
"""Retired words and their replacements."""

NAMES_ONLY = {
    "anew": "again",
    "keeper": "mutex, lease holder",
    "landed": "applied",
    "loose": "ungrouped",
    "proved": "await_...",
    "sight": "visibility, state",
    "sure": "quorum",
}
"""Words that may occur in prose, in their ordinary sense, but not in names."""

PRODUCT_NAMES_ONLY = {
    "met": "observed, found",
    "told": "reported",
}
"""Words that must not occur in names of crates, packages and benchmarks; tests may use them."""

TYPES_ONLY = {
    "care": "maintenance",
    "keeping": "retention",
    "over": "exceeded, finished",
    "seen": "observed",
}
"""Words that must not occur in names of types, but may in names of functions and variables, such as ``take_over``."""

PRODUCT = ("crates/", "python/", "tools/", "bench/")

SUFFIXES = (".rs", ".py", ".pyi", ".md", ".toml", ".js", ".html", ".sh")
EXCEPT = ("scripts/check_words.py", "tests/repository/test_words.py", "tests/data/")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TYPE = re.compile(r"\b(?:class|enum|struct|trait|type)\s+\w+")
_TEXT = re.compile(r'"""[\s\S]*?"""|//.*|#(?!\[).*|"(?:\\.|[^"\\\n])*"')


def findings(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and replacement of each retired word in a file."""
    found = list(_names(text, RETIRED))
    if not path.endswith(".md"):
        blank = _TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        found += _names(blank, NAMES_ONLY | (PRODUCT_NAMES_ONLY if path.startswith(PRODUCT) else {}))
        found += _names(blank, TYPES_ONLY, _TYPE)
    yield from sorted(found)


def _names(text: str, retired: dict[str, str], where: re.Pattern[str] = _WORD) -> Iterator[tuple[int, str, str]]:
    for match in where.finditer(text):
        name = match[0].split()[-1]
        for part in _PARTS.findall(name):
            # Names of tests are sentences, hence prose.
            if part.lower() in retired and name.count("_") < 5:
                yield text.count("\n", 0, match.start()) + 1, name, retired[part.lower()]


def main() -> int:
    """Print each finding as ``path:line: name: advice``; the exit status is 1 if there is one."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count = 0
    for path in listed.splitlines():
        if not path.endswith(SUFFIXES) or path.startswith(EXCEPT) or not (ROOT / path).is_file():
            continue
        for line, name, advice in findings(path, (ROOT / path).read_text(encoding="utf-8")):
            print(f"{path}:{line}: {name}: use {advice}")
            count += 1
    print(f"words: {count} retired words found" if count else "words: no retired words")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
