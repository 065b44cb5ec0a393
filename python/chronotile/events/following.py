"""Follow an archive of events: get documents as they are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

from chronotile.dataset import Dataset
from chronotile.events.searching import ORDER, Question, rows, to_us

__all__ = ["Follower"]


class Follower:
    """Documents stored after its creation, each once; those of one poll are sorted by time.

    It tracks batches, not times, so documents with old times are returned too. Iterate over it to get tables of new
    documents until :meth:`stop`; or call :meth:`look` at your own pace.

    Examples
    --------
    ``for table in events.follow(severity=[0, 1, 2]): print(table["body"].to_pylist())``
    """

    def __init__(self, dataset: Dataset, question: Callable[[], Question], columns: list[str]) -> None:
        self._dataset, self._question, self._columns = dataset, question, columns
        self._stopped = threading.Event()
        self._question()  # Report invalid arguments now rather than at the first poll.
        self._seen = {batch.batch for batch in dataset.batches() if batch.finished}

    def stop(self) -> None:
        """End the iteration, from any thread."""
        self._stopped.set()

    def look(self) -> pa.Table:
        """Documents of batches that were finished since the last call."""
        new = [batch for batch in self._dataset.batches() if batch.finished and batch.batch not in self._seen]
        wanted = list(dict.fromkeys([*self._columns, *ORDER]))
        schema = pa.schema([self._dataset.schema.field(name) for name in wanted])
        found = [schema.empty_table()]
        periods = [batch.period for batch in new if batch.period is not None]
        keys = [batch.key for batch in new if batch.period is not None and batch.key is not None]
        if periods:
            question = self._question()
            # The period of a batch includes its last time, that of a question excludes its end.
            start, end = min(to_us(first) for first, _ in periods), max(to_us(last) for _, last in periods) + 1
            start = start if question.start_us is None else max(start, question.start_us)
            end = end if question.end_us is None else min(end, question.end_us)
            mine = Question(start, end, question.streams, (*question.where, ("batch", "in", keys)), question.visibility)
            if start < end:
                found += [pa.Table.from_batches([batch]) for batch in rows(self._dataset, mine, wanted)]
        # Mark batches as seen only after reading them, so that the next call repeats a failed one.
        self._seen.update(batch.batch for batch in new)
        table = pa.concat_tables(found).sort_by([(name, "ascending") for name in ORDER])
        return table.select(self._columns)

    def __iter__(self) -> Iterator[pa.Table]:
        return self.tables()

    def tables(self, interval_s: float = 1.0) -> Iterator[pa.Table]:
        """Yield tables of new documents, polling every `interval_s` seconds; empty polls yield nothing."""
        while not self._stopped.is_set():
            table = self.look()
            if table.num_rows:
                yield table
            else:
                self._stopped.wait(interval_s)
