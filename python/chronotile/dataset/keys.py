"""The keys and ids that a request names, converted to arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chronotile import _native, cells, inputs
from chronotile.errors import InvalidInputError

if TYPE_CHECKING:
    from chronotile.dataset import Dataset

__all__ = ["cell_columns", "key_arrays"]


def cell_columns(dataset: Dataset) -> tuple[str, ...]:
    """Columns from which the cell rule computes a cell, and whose values therefore serve as keys.

    Raises
    ------
    InvalidInputError
        The dataset has sky cells or a single cell.
    """
    match dataset.cell:
        case cells.HashCell(columns=columns):
            return columns
        case cells.KeyCell(column=column) | cells.IdBucketCell(column=column):
            return (column,)
        case cells.SkyCell():
            hint = "its cells are sky pixels: read by region or by cells"
        case _:
            hint = "it has a single cell: read without keys"
    raise InvalidInputError(f"dataset {dataset.name} has no keys: {hint}", kind="invalid-request")


def key_arrays(dataset: Dataset, values: Any, columns: tuple[str, ...], argument: str) -> list[_native.Array]:
    """Convert a value, a list, or a tuple of lists to one array for each of the first `columns`.

    Raises
    ------
    InvalidInputError
        The values do not match the columns; the message names the `argument`.
    """
    if not columns:
        raise InvalidInputError(f"dataset {dataset.name} has no id columns: read without ids", kind="invalid-request")
    parts = list(values) if isinstance(values, tuple) and len(columns) > 1 else [values]
    if len(parts) > len(columns):
        raise InvalidInputError(
            f"{argument} has {len(parts)} parts, dataset {dataset.name} has {len(columns)} ({', '.join(columns)})",
            kind="invalid-request",
        )
    types = dataset.column_types
    arrays = [_key_array(part, name, types[name], argument) for part, name in zip(parts, columns, strict=False)]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidInputError(
            f"{argument} has lists of different lengths: give lists of equal length", kind="invalid-request"
        )
    return arrays


def _key_array(values: Any, column: str, column_type: str, argument: str) -> _native.Array:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        values = [values]
    try:
        return inputs.column(values, column_type, column)
    except InvalidInputError as error:
        raise InvalidInputError(f"{argument}: {error}", kind="invalid-request") from error
