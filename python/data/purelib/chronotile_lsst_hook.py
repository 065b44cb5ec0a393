"""Register Chronotile with ``lsst.dax.apdb`` in every process of this environment.

That package creates its back ends by name and offers no hook, and programs such as ``apdb-cli`` do not import
Chronotile. So ``chronotile_lsst.pth`` makes Python run this module at startup. It adds one finder to ``sys.meta_path``,
which does nothing until ``lsst.dax.apdb`` is imported; then ``chronotile.apdb.lsst`` is imported after it and registers
the back end. The environment variable ``CHRONOTILE_NO_LSST_HOOK`` switches it off.

Every start of Python runs this module, so it imports only modules that are loaded anyway.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_NAME = "lsst.dax.apdb"


class _Finder:
    """Finds the package with the other finders, and imports our module after it."""

    asked = False
    """Whether this finder was called; further calls are left to the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME or self.asked:
            return None
        import importlib.util

        self.asked = True
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """The package's own loader, followed by the import of ours."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._theirs.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        import importlib
        import warnings

        module.__loader__ = self._theirs
        if module.__spec__ is not None:
            module.__spec__.loader = self._theirs
        self._theirs.exec_module(module)
        try:
            importlib.import_module("chronotile.apdb.lsst")
        except ImportError as error:
            warnings.warn(f"cannot register Chronotile with {_NAME}: {error}", ImportWarning, stacklevel=2)


if _NAME not in sys.modules and not os.environ.get("CHRONOTILE_NO_LSST_HOOK"):
    sys.meta_path.insert(0, _Finder())
