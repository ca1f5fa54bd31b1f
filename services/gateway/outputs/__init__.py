"""Finished files, in a directory or in a bucket: how they are named, written, read and found again.

Knows nothing of jobs' states. Invariant: a file under its final name is complete and hashes to what its Output says.
"""

from services.gateway.outputs.draft import Draft
from services.gateway.outputs.naming import ORPHAN_AGE_S
from services.gateway.outputs.outputs import Outputs

__all__ = ["ORPHAN_AGE_S", "Draft", "Outputs"]
