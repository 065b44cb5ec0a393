"""Worker processes."""

from __future__ import annotations

import multiprocessing
import os
import threading

__all__: list[str] = []


def end_with_parent() -> None:
    """End this process of `multiprocessing` once its parent has ended, even if it was killed.

    Without this, idle workers would wait forever: they hold both ends of their queue, so it never closes.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        # Exiting at any point is safe: archives survive crashes of their processes.
        os._exit(1)

    threading.Thread(target=follow, name="end-with-parent", daemon=True).start()
