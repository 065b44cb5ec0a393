"""Columns of numbers from an Arrow stream as numpy arrays, without pyarrow.

Follows https://arrow.apache.org/docs/format/CDataInterface.html and .../CStreamInterface.html for the types the demo
draws: integers and floats. Other columns are counted, not converted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

__all__ = ["draw"]


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]
_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
_NUMBERS = {b"i": np.int32, b"l": np.int64, b"L": np.uint64, b"f": np.float32, b"g": np.float64}

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def draw(rows: object, *names: str) -> tuple[int, dict[str, np.ndarray]]:
    """Draw a result to its end.

    Parameters
    ----------
    rows : object with ``__arrow_c_stream__``
        Such as a :class:`chronotile.ReadResult`.
    *names : str
        Columns of numbers without nulls, to be converted.

    Returns
    -------
    tuple of int and dict
        The number of rows, and one array for each name.
    """
    # The capsule owns the stream and lets it go when it is collected itself.
    capsule = rows.__arrow_c_stream__()  # type: ignore[attr-defined]
    stream = ctypes.cast(_pointer_of(capsule, b"arrow_array_stream"), ctypes.POINTER(_Stream))
    places = _places(stream, names)
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, kind)] for name, (_, kind) in places.items()}
    count = 0
    for batch in _batches(stream):
        count += batch.length
        for name, (place, kind) in places.items():
            parts[name].append(_numbers(batch, place, np.dtype(kind)))
    return count, {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _places(stream: ctypes._Pointer[_Stream], names: tuple[str, ...]) -> dict[str, tuple[int, type]]:
    schema = _Schema()
    _expect(stream, stream.contents.get_schema(stream, ctypes.byref(schema)))
    try:
        found = {schema.children[i].contents.name.decode(): i for i in range(schema.n_children)}
        return {name: (found[name], _NUMBERS[schema.children[found[name]].contents.format]) for name in names}
    finally:
        schema.release(ctypes.byref(schema))


def _batches(stream: ctypes._Pointer[_Stream]) -> Iterator[_Array]:
    """Each batch; it is released before the next one is drawn."""
    while True:
        batch = _Array()
        _expect(stream, stream.contents.get_next(stream, ctypes.byref(batch)))
        if not batch.release:
            return
        try:
            yield batch
        finally:
            batch.release(ctypes.byref(batch))


def _numbers(batch: _Array, place: int, kind: np.dtype) -> np.ndarray:
    child = batch.children[place].contents
    if child.null_count > 0:
        raise ValueError("a column with nulls cannot be drawn as numbers")
    if not child.length:
        return np.empty(0, kind)
    first = child.buffers[1] + (child.offset + batch.offset) * kind.itemsize
    raw = (ctypes.c_char * (batch.length * kind.itemsize)).from_address(first)
    return np.frombuffer(raw, kind).copy()


def _expect(stream: ctypes._Pointer[_Stream], code: int) -> None:
    if code:
        text = stream.contents.get_last_error(stream)
        raise OSError(code, (text or b"the stream broke off").decode())
