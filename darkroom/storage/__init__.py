"""Files that are whole or absent, in a directory or in an object store.

`open_store` is the one way in. Knows nothing of what the files mean; blocking throughout, so asyncio's users wrap each
call in a thread.
"""

from darkroom.storage.opening import open_store
from darkroom.storage.store import Store, Stored

__all__ = ["Store", "Stored", "open_store"]
