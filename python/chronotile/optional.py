"""Import optional packages, with errors that say how to install them."""

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
"""Package name on PyPI of each optional module."""


def module(name: str, what: str, extra: str) -> Any:
    """Import an optional module.

    Parameters
    ----------
    name : str
        The module: ``"yaml"``.
    what : str
        The feature that needs it, for the error: ``"reading a Felis schema"``.
    extra : str
        The extra of this package that installs it: ``"apdb"``.

    Raises
    ------
    MissingPackageError
        The module cannot be imported; the error gives the pip command.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "?")
        reason = "" if missing else f", which is installed but cannot be imported ({error})"
        raise MissingPackageError(
            f"{what} needs {DISTRIBUTIONS[name]}{reason}: pip install 'chronotile[{extra}]'", kind="missing-package"
        ) from None


def require(what: str, extra: str, *names: str) -> None:
    """Check that optional modules can be imported; see :func:`module`."""
    for name in names:
        module(name, what, extra)
