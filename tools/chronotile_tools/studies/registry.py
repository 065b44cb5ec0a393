"""The studies by name."""

from __future__ import annotations

from chronotile import _native
from chronotile.errors import InvalidInputError
from chronotile_tools.studies import (
    alert_changes,
    alert_database,
    capacity,
    client_recovery,
    historian_cluster,
    job_archive,
    log_store_versions,
    pixels,
    read_repair,
    tails,
)
from chronotile_tools.studies.base import Study

__all__ = ["STUDIES", "find"]

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        pixels.STUDY, capacity.STUDY, tails.STUDY, alert_database.STUDY, alert_changes.STUDY,
        read_repair.STUDY,
        historian_cluster.STUDY, client_recovery.STUDY, log_store_versions.STUDY, job_archive.STUDY,
    )
}  # fmt: skip


def find(name: str) -> Study:
    """The study of a name.

    Raises
    ------
    InvalidInputError
        The study does not exist; the message suggests the nearest name.
    """
    if name not in STUDIES:
        near = " or ".join(_native.nearest_names(name, list(STUDIES)))
        hint = f"did you mean {near}?" if near else f"the studies are {', '.join(STUDIES)}"
        raise InvalidInputError(f"no study {name!r}: {hint}", kind="invalid-setting")
    return STUDIES[name]
