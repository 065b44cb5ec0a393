"""Results of a study in a JSON file: parameters, runs, and the values of each part.

The file is written after every part, so an interrupted study continues where it stopped.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from chronotile import durable
from chronotile.errors import DataFileError
from chronotile_tools.survey.simulate.runner import machine

__all__ = ["FORMAT", "Record", "Values", "this_run"]

FORMAT = 1
"""Version of the file format."""

Values = dict[str, Any]


@dataclass
class Record:
    """Results of a study.

    Attributes
    ----------
    study : str
        Name of the study.
    parameters : dict
        Parameters of the parts.
    runs : list of dict
        Date, commit, versions, machine and load average of each run that added parts.
    parts : dict of str to dict
        Values by part; ``run`` is the number of the run that computed them.
    """

    study: str
    parameters: Values
    runs: list[Values] = field(default_factory=list)
    parts: dict[str, Values] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises
        ------
        DataFileError
            The file does not exist or has other content.
        """
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            if given.pop("format") != FORMAT:
                raise DataFileError(
                    f"{path} was written by another version: repeat the study in another folder", kind="file-content"
                )
            return cls(**given)
        except FileNotFoundError:
            raise DataFileError(f"no such file: {path}", kind="file-not-found") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataFileError(f"{path} is not the results of a study: {error}", kind="file-content") from error

    def write(self, path: Path) -> None:
        """Replace the file atomically: after a crash it has the old content or the new."""
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_text(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")


def this_run() -> Values:
    """Description of this run, for `Record.runs`."""
    versions = {name: metadata.version(name) for name in ("chronotile", "numpy")}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **versions},
        "machine": machine(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _commit() -> str | None:
    """Commit of the sources if they are a git checkout, with ``-dirty`` if they were changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
