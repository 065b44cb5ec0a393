"""Dispatches requests to the handlers of events and jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from chronotile import optional
from chronotile.archive import Archive
from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.errors import ChronotileError, InvalidInputError, MissingPackageError
from chronotile.service.answers import Answer
from chronotile.service.query_parameters import QueryParameters

__all__ = ["FrontEnds"]

SORTED_BYTES_MAX = 16 << 20
"""Most bytes of documents of one response that are sorted at once."""

GROUPS_MAX = 100_000
"""Most groups of one response."""


_HISTORIAN = "historian_"
"""Prefix of the names of a historian's datasets."""


class FrontEnds:
    """Answers requests to archives of events and jobs. Safe to use from many threads.

    Parameters
    ----------
    archive : Archive
        The archive to serve.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lock = threading.Lock()
        self._served: dict[str, Callable[[str, QueryParameters, bytes], Answer]] | None = None

    def prepare(self) -> threading.Thread:
        """Load the handlers in the background if the archive has datasets of other front ends than the historian: their
        packages take a second, which the first request would wait for.
        """
        loading = threading.Thread(target=self._load, name="chronotile-load", daemon=True)
        loading.start()
        return loading

    def _load(self) -> None:
        # The first request reports the error.
        with contextlib.suppress(ChronotileError):
            if any(not name.startswith(_HISTORIAN) for name in self._archive.datasets()):
                self._operations()

    def answer(
        self, operation: str, name: str, parameters: list[tuple[str, str]], body: bytes,
        hold: Callable[[int], None] = UNBOUNDED.hold,
    ) -> Answer:  # fmt: skip
        """Answer one request.

        Parameters
        ----------
        operation : str
            Front end and operation: ``events.search``.
        name : str
            The archive of events or jobs.
        parameters : list of (str, str)
            Query parameters, as for :class:`chronotile.service.query_parameters.QueryParameters`.
        body : bytes
            Body of the request.
        hold : callable
            Called with the total bytes that the response is about to occupy; raises if the service's memory budget is
            exceeded.

        Raises
        ------
        ChronotileError
            The request is invalid or fails. Kind ``not-installed`` if packages are missing.
        """
        served = self._operations()
        import pyarrow as pa

        try:
            bounds = Bounds(hold, SORTED_BYTES_MAX, GROUPS_MAX)
            return served[operation](name, QueryParameters(parameters, bounds), body)
        except pa.ArrowException as error:
            # For example, an aggregate that the type of its column does not support.
            raise InvalidInputError(f"{operation} of {name}: {error}", kind="invalid-request") from None

    def _operations(self) -> dict[str, Callable[[str, QueryParameters, bytes], Answer]]:
        """The handlers, loaded at the first request: a service with only a historian does not need pyarrow."""
        with self._lock:
            if self._served is None:
                try:
                    optional.require("a service of events and jobs", "events,jobs", "numpy", "pyarrow")
                except MissingPackageError as error:
                    raise ChronotileError(str(error), kind="not-installed") from None
                import pyarrow as pa

                # The default pool keeps freed memory for reuse, outside the budget of the service.
                pa.set_memory_pool(pa.system_memory_pool())
                from chronotile.service.events import ServedEvents
                from chronotile.service.jobs import ServedJobs

                self._served = {**ServedEvents(self._archive).operations, **ServedJobs(self._archive).operations}
            return self._served
