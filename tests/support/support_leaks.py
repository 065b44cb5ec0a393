"""Files and sockets that are left to the garbage collector."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable


def unclosed(work: Callable[[], object]) -> list[str]:
    """What `work` leaves open, even in a cycle, such as that of an error with the frames that it passed."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.disable()
        try:
            work()
        finally:
            gc.enable()
        gc.collect()
    return [str(warning.message) for warning in found]
