"""The demo: stores a night of a small simulated sky survey in an alert production database, and reads it back.

>>> from chronotile import demo
>>> outcome = demo.run(nights=1, out="demo-doctest", echo=lambda line: None)  # doctest: +SKIP
>>> outcome.page  # doctest: +SKIP
PosixPath('demo-doctest/index.html')
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chronotile import optional
from chronotile.errors import ChronotileError, DataFileError, InvalidInputError

if TYPE_CHECKING:
    from chronotile.demo.measure import Outcome

__all__ = ["CheckError", "run"]

ARCHIVE, PAGE, MARKER = "survey.db", "index.html", ".chronotile-demo"
_OWN = frozenset([ARCHIVE, f"{ARCHIVE}-wal", f"{ARCHIVE}-shm", PAGE, MARKER])


class CheckError(ChronotileError, AssertionError):
    """A read did not return the stored rows. Kind ``demo-check``."""


def run(
    nights: int = 1,
    out: str | os.PathLike[str] = "chronotile-demo",
    seed: int = 1,
    visits: int = 60,
    echo: Callable[[str], object] = print,
) -> Outcome:
    """Simulate a survey, store every detector-visit, read every footprint back, print a table and write a page.

    Each read must return exactly the objects, sources and forced sources that were stored.

    Parameters
    ----------
    nights : int
        Nights to simulate, 1 to 100; more than three are spread over up to eleven months. One night takes less than
        half a minute.
    out : path
        Folder for the archive (``survey.db``) and the page (``index.html``), created if necessary. Files of an earlier
        run are replaced; a folder that contains other files is refused.
    seed : int
        Seed of the random numbers: the same seed produces the same survey.
    visits : int
        Visits per night, 4 to 800, each with four detectors.
    echo : callable
        Called with each line to print.

    Returns
    -------
    Outcome
        The measurements, and the path of the page.

    Raises
    ------
    CheckError
        A read did not return the stored rows.
    DataFileError
        `out` contains other files (``file-exists``) or cannot be created (``file-access``).
    MissingPackageError
        numpy, pyarrow or PyYAML is missing.
    """
    for name, value, least, most in (("nights", nights, 1, 100), ("visits", visits, 4, 800)):
        if not least <= value <= most:
            raise InvalidInputError(f"{name} is {value}: use {least} to {most}", kind="invalid-request")
    optional.require("the demo", "demo", "numpy", "pyarrow", "yaml")
    from chronotile.demo import measure, page
    from chronotile.demo.stars import Survey

    folder = _fresh_folder(Path(out))
    outcome = measure.measure(folder / ARCHIVE, folder / PAGE, Survey(nights, seed, visits), echo)
    (folder / PAGE).write_text(page.html(outcome), encoding="utf-8")
    echo(f"The page: {(folder / PAGE).resolve()}")
    return outcome


def _fresh_folder(folder: Path) -> Path:
    """Create the folder, or remove the files of an earlier run from it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in _OWN)
        # Files with our names belong to an earlier run only if the marker is beside them.
        if foreign or (any(folder.iterdir()) and not (folder / MARKER).exists()):
            what = foreign[0] if foreign else next(folder.iterdir()).name
            raise DataFileError(
                f"{folder} holds {what}, which is not of an earlier demo: give another folder with --out",
                kind="file-exists",
            )
        (folder / MARKER).touch()
        for name in _OWN - {MARKER}:
            (folder / name).unlink(missing_ok=True)
    except FileExistsError as error:
        raise DataFileError(f"{folder} is a file: give a folder with --out", kind="file-exists") from error
    return folder
