"""Merge a node's settings for an upgrade: old defaults, ours and new defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chronotile.errors import DataFileError, InvalidInputError

Kind = Literal["kept", "taken", "conflict", "gone", "dropped"]
"""``kept``: ours, which differs from an unchanged default. ``taken``: the new default, because ours was the old one.
``conflict``: ours, although the default changed too. ``gone``: ours, which the new defaults no longer contain.
``dropped``: an old default that the new ones no longer contain."""
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A setting that differs between old defaults, ours and new defaults."""

    kind: Kind
    name: str
    """Name, with dots for nested settings."""
    old: Any
    ours: Any
    new: Any

    def __str__(self) -> str:
        old, ours, new = map(_text, (self.old, self.ours, self.new))
        descriptions = {
            "kept": f"ours {ours} stays (default {new})",
            "taken": f"new default {new} (was {old})",
            "conflict": f"ours {ours} stays, and the default changed: {old} -> {new}",
            "gone": f"ours {ours} stays, and the new defaults do not name it: look it up in NEWS.txt",
            "dropped": f"left out: the new defaults no longer name it (was {old})",
        }
        return f"{self.kind:<8}  {self.name}: {descriptions[self.kind]}"


@dataclass
class Merged:
    """Merged settings for the new release, with differences."""

    settings: dict[str, Any]
    differences: list[Difference] = field(default_factory=list)

    @property
    def conflicts(self) -> list[Difference]:
        """Differences that need the operator's attention."""
        return [one for one in self.differences if one.kind in ("conflict", "gone")]


def merge(old: Mapping[str, Any], ours: Mapping[str, Any], new: Mapping[str, Any]) -> Merged:
    """Merge an old release's defaults, our settings, and a new release's defaults.

    Settings that we never changed follow the new defaults; changed ones stay. Maps are merged by key; lists are atomic.
    """
    merged = Merged({})
    _merge(old, ours, new, "", merged.settings, merged.differences)
    return merged


def _merge(
    old: Mapping[str, Any],
    ours: Mapping[str, Any],
    new: Mapping[str, Any],
    above: str,
    result: dict[str, Any],
    found: list[Difference],
) -> None:
    # Keep the order of the new release's file, followed by settings that only ours has.
    for name in dict.fromkeys([*new, *ours, *old]):
        before, mine, after = (one.get(name, _ABSENT) for one in (old, ours, new))
        if isinstance(mine, Mapping) and isinstance(after, Mapping):
            inner: dict[str, Any] = {}
            _merge(before if isinstance(before, Mapping) else {}, mine, after, f"{above}{name}.", inner, found)
            result[name] = inner
            continue
        kind, value = _decided(before, mine, after)
        if value is not _ABSENT:
            result[name] = value
        if kind is not None:
            found.append(Difference(kind, above + name, *(None if v is _ABSENT else v for v in (before, mine, after))))


def _decided(before: Any, mine: Any, after: Any) -> tuple[Kind | None, Any]:
    if mine == after:
        return None, after
    if mine == before:
        # Unchanged by us, or removed from our file: use the new release's value.
        return ("taken", after) if after is not _ABSENT else ("dropped", _ABSENT)
    if mine is _ABSENT:
        return ("taken", after) if before != after else (None, _ABSENT)
    if after is _ABSENT:
        return "gone", mine
    return ("kept", mine) if before == after else ("conflict", mine)


def _text(value: Any) -> str:
    return "none" if value is None else repr(value)


def read(path: Path) -> dict[str, Any]:
    """Read the settings of a cassandra.yaml.

    Raises
    ------
    DataFileError
        The file cannot be read, or is invalid YAML.
    InvalidInputError
        It is not a map of settings, or PyYAML is missing.
    """
    yaml = _yaml()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"{path}: {error.strerror}", kind="file-not-found") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataFileError(f"{path}: invalid YAML: {' '.join(str(error).split())}", kind="file-format") from None
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: not a map of settings", kind="invalid-setting")
    return content


def write(path: Path, merged: Merged) -> None:
    """Write settings as YAML to a new file.

    Raises
    ------
    DataFileError
        The file exists, or cannot be written.
    """
    text = _yaml().safe_dump(merged.settings, sort_keys=False, width=120)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DataFileError(f"{path} already exists: use another name", kind="file-exists") from None
    except OSError as error:
        raise DataFileError(f"{path}: {error.strerror}", kind="file-access") from None


def _yaml() -> Any:
    import yaml

    return yaml
