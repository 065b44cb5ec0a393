"""Packages that only parts of this one need, and what brings them."""

from __future__ import annotations

import importlib
from typing import Any

from chronotile.errors import MissingPackageError

__all__ = ["DISTRIBUTIONS", "module", "require"]

DISTRIBUTIONS = {
    "astropy": "astropy",
    "fastavro": "fastavro",
    "felis": "lsst-felis",
    "lsst.dax.apdb": "lsst-dax-apdb",
    "lsst.sdm.schemas": "lsst-sdm-schemas",
    "numpy": "numpy",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "sqlalchemy": "SQLAlchemy",
    "yaml": "PyYAML",
}
"""The name on the package index of each optional module."""


def module(name: str, what: str, extra: str) -> Any:
    """An optional module, imported.

    Parameters
    ----------
    name : str
        The module: ``"yaml"``.
    what : str
        What needs it, for the error: ``"reading a Felis schema"``.
    extra : str
        The extra of this package that brings it: ``"apdb"``.

    Raises
    ------
    MissingPackageError
        The module cannot be imported; the error gives the line for pip.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "?")
        reason = "" if missing else f", which is installed but fails ({error})"
        raise MissingPackageError(
            f"{what} needs {DISTRIBUTIONS[name]}{reason}: pip install 'chronotile[{extra}]'", kind="missing-package"
        ) from None


def require(what: str, extra: str, *names: str) -> None:
    """Check that optional modules are there, as :func:`module` does."""
    for name in names:
        module(name, what, extra)
