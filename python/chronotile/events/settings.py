"""What an archive of events keeps about itself: how documents are read, their TTL, the limits of streams."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from chronotile import cells
from chronotile.archive import Archive
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError

__all__ = ["Limits", "Settings", "SettingsStore"]


@dataclass(frozen=True)
class Limits:
    """How much one stream may send. Counted by each process that ingests, for itself."""

    documents_per_s: float | None = None
    """Documents a second, on average over the period; None for any number."""
    bytes_per_s: float | None = None
    """Bytes of documents a second, on average over the period; None for any number."""
    period_s: float = 10.0
    """Seconds over which is counted: a stream may send as much at once as it may in a period."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"{name} is {value}: give a positive number", kind="invalid-setting")


@dataclass(frozen=True)
class Settings:
    """One state of the settings."""

    paths: dict[str, str] = field(default_factory=dict)
    """Where a field stands in a document, of those whose column has another name."""
    time_field: str = "time"
    time_format: str = "iso8601"
    stream_field: str | None = None
    ttl_s: int | None = None
    """Of documents that have none of their own; None for ever."""
    limits: Limits = field(default_factory=Limits)
    expired_us: int | None = None
    """Documents without a TTL of their own from before this time had expired when the TTL was last changed."""
    ttl_own_max_s: int | None = None
    """The longest TTL that a write ever gave; None where none did."""


class SettingsStore:
    """The dataset ``NAME_settings``: texts by key, of which the newest wins.

    What only ever grows, the longest TTL of a write and the time before which everything has expired, has a key of its
    own for each value, so that two processes that set them at once cannot undo each other.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    @classmethod
    def create(cls, archive: Archive, name: str) -> SettingsStore:
        """Make the dataset, or open it."""
        columns = {"key": "utf8", "value": "utf8", "updated": "timestamp[us, UTC]"}
        dataset = archive.create(
            name, schema=columns, cell=cells.single(), time="updated", window="3650d", id=["key"], merge="latest",
            exist_ok=True,
        )  # fmt: skip
        return cls(dataset)

    def read(self) -> Settings:
        """The settings as they are now."""
        rows = self._dataset.read(columns=["key", "value"]).to_arrow()
        texts = dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        known = json.loads(texts.get("settings", "{}"))
        found = Settings(**{**known, "limits": Limits(**known.get("limits", {}))})
        return replace(found, expired_us=_greatest(texts, "expired"), ttl_own_max_s=_greatest(texts, "ttl"))

    def write(self, settings: Settings) -> None:
        """Keep all but what only grows."""
        plain = asdict(settings)
        del plain["expired_us"], plain["ttl_own_max_s"]
        self._put("settings", json.dumps(plain))

    def raise_expired(self, time_us: int) -> None:
        """Documents without a TTL of their own from before this time have expired for good."""
        self._put(f"expired:{time_us}", "")

    def raise_ttl_own(self, ttl_s: int) -> None:
        """A write is about to give this TTL."""
        self._put(f"ttl:{ttl_s}", "")

    def _put(self, key: str, value: str) -> None:
        self._dataset.write({"key": [key], "value": [value], "updated": [datetime.now(UTC)]})


def _greatest(texts: dict[str, str], kind: str) -> int | None:
    return max((int(key.partition(":")[2]) for key in texts if key.startswith(f"{kind}:")), default=None)
