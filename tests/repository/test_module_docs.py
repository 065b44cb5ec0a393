"""Each Rust module says at its beginning what it contains. Ruff checks Python modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_rust_module_has_a_doc_line() -> None:
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True)
    modules = listed.stdout.split()
    assert len(modules) > 300
    assert [name for name in modules if not (ROOT / name).read_text().startswith("//! ")] == []
