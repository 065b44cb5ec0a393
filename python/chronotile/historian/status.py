"""Status codes of OPC UA: their values and names."""

from __future__ import annotations

from chronotile import scanning
from chronotile.errors import InvalidInputError

__all__ = [
    "BAD",
    "BAD_NO_DATA",
    "CALCULATED",
    "GOOD",
    "INTERPOLATED",
    "MULTIPLE_VALUES",
    "PARTIAL",
    "UNCERTAIN",
    "UNCERTAIN_SUB_NORMAL",
    "status_code",
    "status_text",
]

GOOD = 0x0000_0000
"""Status code Good."""
UNCERTAIN = 0x4000_0000
"""Status code Uncertain."""
UNCERTAIN_SUB_NORMAL = 0x40A4_0000
"""Status code Uncertain_DataSubNormal: derived from too few good values."""
BAD = 0x8000_0000
"""Status code Bad."""
BAD_NO_DATA = 0x809B_0000
"""Status code Bad_NoData."""
CALCULATED = 0x401
"""Aggregate bits of a status code: computed from several values."""
INTERPOLATED = 0x402
"""Aggregate bits of a status code: interpolated between values."""
PARTIAL = 0x404
"""Aggregate bits of a status code: the data cover only a part of the interval."""
MULTIPLE_VALUES = 0x410
"""Aggregate bits of a status code: several values fit the description of the result."""

_NAMED_CODES = {GOOD: "Good", UNCERTAIN: "Uncertain", UNCERTAIN_SUB_NORMAL: "UncertainDataSubNormal", BAD: "Bad"}
_NAMED_CODES |= {BAD_NO_DATA: "BadNoData", 0x808C_0000: "BadSensorFailure"}
_NAMED_BITS = {1: "Calculated", 2: "Interpolated", 4: "Partial", 8: "ExtraData", 16: "MultipleValues"}
_STATUS_CHARS_MAX = 200


def status_text(status: int) -> str:
    """Describe a status code in words, such as ``"Good, Calculated, Partial"``; unknown codes in hexadecimal."""
    code = status & 0xFFFF_0000
    bits = status & 0x1F if status & 0xC00 == 0x400 else 0
    words = [_NAMED_CODES.get(code, f"0x{code:08X}")]
    return ", ".join(words + [name for bit, name in _NAMED_BITS.items() if bits & bit])


def status_code(text: str) -> int:
    """Parse a status code: a number, or words such as ``"Good, Calculated"``, as :func:`status_text` writes them.

    Raises
    ------
    InvalidInputError
        The text is not a status code.
    """
    first, *bits = [word.strip().lower() for word in text.split(",")] if len(text) <= _STATUS_CHARS_MAX else [""]
    code = _code(first)
    flags = {name.lower(): bit for bit, name in _NAMED_BITS.items()}
    if code is None or any(bit not in flags for bit in bits):
        raise InvalidInputError(
            f"unknown status {scanning.shown(text)}: give an OPC UA status code as a whole number, or one of "
            f"{', '.join(_NAMED_CODES.values())}",
            kind="invalid-rows",
        )
    return code | (0x400 if bits else 0) | sum({flags[bit] for bit in bits})


def _code(word: str) -> int | None:
    """Parse a decimal number, a hexadecimal one after ``0x``, or the name of a code."""
    digits = word.rpartition(" ")[2]
    if digits.startswith("0x") and digits[2:].isalnum():
        try:
            code = int(digits[2:], 16)
        except ValueError:
            return None
        return code if code < 2**32 else None
    number = scanning.whole_number(word, 10)
    if number is not None:
        return number if 0 <= number < 2**32 else None
    return {name.lower(): value for value, name in _NAMED_CODES.items()}.get(word)
