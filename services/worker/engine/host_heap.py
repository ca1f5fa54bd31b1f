"""The C library's heap of a worker on the processor: keeps what one step frees for the next, gives it back on unload.

glibc returns large blocks to the kernel as they are freed, and every step then faults its activations in anew: 1,200 to
2,500 faults a picture of the emoji model, 5 to 8 % of its time on a virtual machine (bench/LAB.md). Other C libraries
are left alone. Invariant: only speed and the moment of giving back depend on this.
"""

from __future__ import annotations

import ctypes
import sys

# malloc.h of glibc.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
# glibc's own upper bound for blocks that come from the heap (DEFAULT_MMAP_THRESHOLD_MAX); larger ones stay mappings.
LARGEST_HEAP_BLOCK_BYTES = 32 * 2**20
TOP_PAD_BYTES = 16 * 2**20
NEVER = 2**31 - 1


def keep_freed() -> bool:
    """Has the heap keep what is freed. Returns whether the C library took it."""
    library = _glibc()
    if library is None:
        return False
    settings = (
        (M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES),
        (M_TRIM_THRESHOLD, NEVER),
        (M_TOP_PAD, TOP_PAD_BYTES),
    )
    return all(library.mallopt(name, value) == 1 for name, value in settings)


def give_back() -> None:
    """Returns all free memory of the heap to the kernel."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
