"""The demonstration: some nights of a small sky survey, stored visit by visit and read back.

>>> from chronotile import demo
>>> outcome = demo.run(nights=2, out="demo-doctest", echo=lambda line: None)  # doctest: +SKIP
>>> outcome.page  # doctest: +SKIP
PosixPath('demo-doctest/index.html')
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chronotile.errors import ChronotileError, DataFileError, InvalidInputError

if TYPE_CHECKING:
    from chronotile.demo.measure import Outcome

__all__ = ["CheckError", "MissingPackageError", "run"]

ARCHIVE, PAGE, MARKER = "survey.db", "index.html", ".chronotile-demo"
_OWN = frozenset([ARCHIVE, f"{ARCHIVE}-wal", f"{ARCHIVE}-shm", PAGE, MARKER])


class MissingPackageError(ChronotileError, ImportError):
    """The demo needs a package that is not installed. Kind ``missing-package``."""


class CheckError(ChronotileError, AssertionError):
    """A read did not return what was stored. Kind ``demo-check``."""


def run(
    nights: int = 12,
    out: str | os.PathLike[str] = "chronotile-demo",
    seed: int = 1,
    echo: Callable[[str], object] = print,
) -> Outcome:
    """Simulate a survey, store every visit, read every footprint back, print a table and write a page.

    Each read is compared with what was stored: it must hold the very same sources and objects.

    Parameters
    ----------
    nights : int
        Nights to simulate, 1 to 300, spread over at most eleven months. Twelve take about half a minute.
    out : path
        Folder for the archive (``survey.db``) and the page (``index.html``). It is made; the files of an earlier run in
        it are replaced, and a folder with anything else in it is refused.
    seed : int
        The same seed makes the same survey.
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
        When numpy is missing.
    """
    if not 1 <= nights <= 300:
        raise InvalidInputError(f"nights is {nights}: use 1 to 300", kind="invalid-request")
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            "the demo needs numpy: pip install 'chronotile[demo]'", kind="missing-package"
        ) from None
    from chronotile.demo import measure, page

    folder = _fresh_folder(Path(out))
    outcome = measure.measure(folder / ARCHIVE, folder / PAGE, nights, seed, echo)
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
