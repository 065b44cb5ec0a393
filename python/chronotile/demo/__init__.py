"""The demonstration: a night of a small sky survey, stored in an alert production database and read back.

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
    """A read did not return what was stored. Kind ``demo-check``."""


def run(
    nights: int = 1,
    out: str | os.PathLike[str] = "chronotile-demo",
    seed: int = 1,
    visits: int = 60,
    echo: Callable[[str], object] = print,
) -> Outcome:
    """Simulate a survey, store every detector-visit, read every footprint back, print a table and write a page.

    Each read is compared with what was stored: it must hold the very same objects, sources and forced sources.

    Parameters
    ----------
    nights : int
        Nights to simulate, 1 to 100; more than three are spread over up to eleven months. One takes less than half a
        minute.
    out : path
        Folder for the archive (``survey.db``) and the page (``index.html``). It is made; the files of an earlier run in
        it are replaced, and a folder with anything else in it is refused.
    seed : int
        The same seed makes the same survey.
    visits : int
        Visits of a night, 4 to 800, each of four detectors.
    echo : callable
        Called with each line to print.

    Returns
    -------
    Outcome
        What was measured, and where the page is.

    Raises
    ------
    CheckError
        When a read returned anything but what was stored.
    DataFileError
        When `out` holds foreign files (``file-exists``) or cannot be made (``file-access``).
    MissingPackageError
        When numpy, pyarrow or PyYAML is missing.
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
    """Make the folder, or clear away the files of an earlier run in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in _OWN)
        # A folder with a file of one of our names is ours only with the marker beside it.
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
    except PermissionError as error:
        raise DataFileError(f"{folder} cannot be written to: {error.strerror}", kind="file-access") from error
    return folder
