"""Settings of three files brought together: nothing an operator changed is lost, nothing old is carried on unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chronotile as ct
from chronotile_tools.ops.procedures import settings

NAMES = st.sampled_from("abcdef")
VALUES = st.integers(0, 2) | st.dictionaries(NAMES, st.integers(0, 2), min_size=1, max_size=3)
FILES = st.dictionaries(NAMES, VALUES, max_size=6)

OLD = {"threads": 32, "timeout_ms": 5000, "cache": {"size": 8, "kind": "lru"}, "seeds": ["a"], "legacy": True, "rpc": 1}
NEW = {
    "threads": 32,
    "timeout_ms": 9000,
    "cache": {"size": 16, "kind": "lru", "ttl": 5},
    "seeds": ["a"],
    "fresh": "yes",
}
OURS = {
    "threads": 64,
    "timeout_ms": 7000,
    "cache": {"size": 8, "kind": "fifo"},
    "seeds": ["a", "b"],
    "legacy": False,
    "rpc": 1,
}


def test_what_we_changed_stays_and_what_we_did_not_follows_the_new_release() -> None:
    merged = settings.merge(OLD, OURS, NEW)
    assert merged.settings == {
        "threads": 64, "timeout_ms": 7000, "cache": {"size": 16, "kind": "fifo", "ttl": 5}, "seeds": ["a", "b"],
        "fresh": "yes", "legacy": False,
    }  # fmt: skip
    assert {(one.kind, one.name) for one in merged.differences} == {
        ("kept", "threads"), ("conflict", "timeout_ms"), ("taken", "cache.size"), ("kept", "cache.kind"),
        ("taken", "cache.ttl"), ("kept", "seeds"), ("taken", "fresh"), ("gone", "legacy"), ("dropped", "rpc"),
    }  # fmt: skip
    assert [one.name for one in merged.conflicts] == ["timeout_ms", "legacy"]
    assert "ours 7000 stays, and the default changed: 5000 -> 9000" in str(merged.conflicts[0])


@given(FILES, FILES)
def test_without_a_change_of_ours_the_result_is_the_new_defaults(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert settings.merge(old, old, new).settings == new


@given(FILES, FILES)
def test_without_a_change_of_the_defaults_the_result_is_ours(old: dict[str, Any], ours: dict[str, Any]) -> None:
    assert settings.merge(old, ours, old).settings == ours


@given(FILES, FILES, FILES)
def test_no_value_of_ours_is_lost_without_a_word(
    old: dict[str, Any], ours: dict[str, Any], new: dict[str, Any]
) -> None:
    merged = settings.merge(old, ours, new)
    names = [one.name for one in merged.differences]
    assert len(names) == len(set(names))
    named = {one.name for one in merged.differences}

    def look(before: Any, mine: dict[str, Any], found: Any, above: str) -> None:
        for name, value in mine.items():
            inner = found.get(name) if isinstance(found, dict) else None
            if isinstance(value, dict) and isinstance(inner, dict):
                look(before.get(name, {}) if isinstance(before, dict) else {}, value, inner, f"{above}{name}.")
            elif inner != value:
                assert above + name in named
                assert isinstance(before, dict)
                assert before.get(name) == value, "only what was the old default gives way"

    look(old, ours, merged.settings, "")


def test_files_are_read_and_written_and_what_is_none_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("old.yaml", "ours.yaml", "new.yaml")]
    for path, content in zip(paths, (OLD, OURS, NEW), strict=True):
        settings.write(path, settings.Merged(content))
    merged = settings.merge(*(settings.read(path) for path in paths))
    assert merged.settings == settings.merge(OLD, OURS, NEW).settings
    with pytest.raises(ct.DataFileError, match=r"ours.yaml already exists"):
        settings.write(paths[1], merged)
    for bad in ("a: [1\nb: {", "day: 2026-13-45", "[" * 1_000):
        (tmp_path / "bad.yaml").write_text(bad)
        with pytest.raises(ct.DataFileError, match="invalid YAML"):
            settings.read(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ct.InvalidInputError, match="not a map of settings"):
        settings.read(tmp_path / "list.yaml")
    with pytest.raises(ct.DataFileError, match="No such file"):
        settings.read(tmp_path / "missing.yaml")
