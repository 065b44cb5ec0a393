"""SQLAlchemy engines that tests or libraries create.

From Python 3.13 on, a SQLite connection that is not closed is a warning, which fails whatever test runs when the
connection is collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa


def record_disposals(monkeypatch: pytest.MonkeyPatch) -> list[sa.Engine]:
    """The engines that are disposed from now on, in a list that grows."""
    disposed: list[sa.Engine] = []
    dispose = sa.Engine.dispose

    def listed(engine: sa.Engine) -> None:
        disposed.append(engine)
        dispose(engine)

    monkeypatch.setattr(sa.Engine, "dispose", listed)
    return disposed


@contextmanager
def disposing_engines() -> Iterator[None]:
    """Dispose all engines that are created inside, for libraries that leave theirs open."""
    create = sa.create_engine

    def created(*arguments: Any, **settings: Any) -> sa.Engine:
        engine = create(*arguments, **settings)
        engines.callback(engine.dispose)
        return engine

    with ExitStack() as engines, mock.patch.object(sa, "create_engine", created):
        yield
