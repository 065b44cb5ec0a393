"""Results of reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from chronotile import _native, optional

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["ReadResult"]


class ReadResult:
    """The rows of one read, as a stream.

    Rows are fetched from the archive while they are consumed, so a result larger than memory can be processed batch by
    batch. A result can be consumed **once**: by one of the ``to_`` methods, by :meth:`batches`, or by any library that
    knows ``__arrow_c_stream__`` (pyarrow, polars, DuckDB, pandas 3, ...); a second use raises
    :class:`~chronotile.ClosedError`. Call the read again to get a new result. The order of rows is undefined.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.ReadResult) -> None:
        self._native = native

    def __repr__(self) -> str:
        state = ", consumed" if self._native.consumed else ""
        return f"<ReadResult: {len(self.column_names)} columns{state}>"

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order. Does not consume rows."""
        return self._native.column_names

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns as a `pyarrow.Schema`. Does not consume rows. Needs pyarrow."""
        return _pyarrow("schema").schema(self._native)

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a `pyarrow.Table`. Needs pyarrow.

        Raises
        ------
        DamagedChunkError
            A chunk that the read needs is damaged.
        ClosedError
            The result was already consumed.
        """
        return _pyarrow("to_arrow()").table(self._native.collect())

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """All rows as a `pandas.DataFrame`; `options` go to `pyarrow.Table.to_pandas`. Needs pyarrow and pandas.

        As always with pandas, integer columns with nulls become float64 unless `options` change that, for example
        ``types_mapper=pandas.ArrowDtype``.
        """
        optional.require("to_pandas()", "pandas", "pyarrow", "pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """All rows as a `polars.DataFrame`. Needs polars, but not pyarrow."""
        frame: polars.DataFrame = optional.module("polars", "to_polars()", "polars").DataFrame(self._native.collect())
        return frame

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The rows batch by batch, as `pyarrow.RecordBatch`, in bounded memory. Needs pyarrow.

        Without pyarrow, pass the result to a library that reads Arrow streams.
        """
        pyarrow = _pyarrow("batches()")
        while (table := self._native.next_batch()) is not None:
            yield from pyarrow.table(table).to_batches()

    def to_reader(self) -> pyarrow.RecordBatchReader:
        """The stream as a `pyarrow.RecordBatchReader`. Needs pyarrow 15."""
        return _pyarrow("to_reader()").RecordBatchReader.from_stream(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for any library that speaks the Arrow PyCapsule interface."""
        return self._native.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """The columns for any library that speaks the Arrow PyCapsule interface. Does not consume rows."""
        return self._native.__arrow_c_schema__()


def _pyarrow(what: str) -> Any:
    return optional.module("pyarrow", what, "arrow")
