"""How the files of claims are called.

    a directory                       a bucket
    ├── store-id                      ├── store-id                   which store this is
    ├── .drafts/                      │                              being written
    └── 3f/ID-COUNTER                 ├── 3f/ID-COUNTER.SHA256       a job's file
                                      └── 3f/ID-COUNTER              says that it is whole: its SHA-256 and size

A job's id and the counter of the claim that made the file; 3f is the id's end. In a bucket the bytes are named by their
content first, and one conditional write then names them as the claim's. They are never shared between jobs, so that
what one job no longer needs is no other's either.

Knows nothing of stores. Invariant: names are made of a checked id, a number and a digest, never of what a caller sent.
"""

from __future__ import annotations

import re

from services.gateway.store.vocabulary import JOB_ID, check_job_id

STORE_ID = "store-id"
PROBE = "probe"
# Younger files may be about to be named.
ORPHAN_AGE_S = 3600.0
# What keys of files begin with: a bucket is listed in this many pieces.
STARTS = "0123456789abcdef"
_NAME = re.compile(rf"[0-9a-f]{{2}}/({JOB_ID.pattern})-(\d+)(?:\.[0-9a-f]{{64}})?")


def name_of(job_id: str, counter: int) -> str:
    """Returns the key of a claim's file, or of what names it. Raises UnknownJobError for what is no id."""
    return f"{start_of(job_id)}{int(counter)}"


def start_of(job_id: str) -> str:
    """Returns what the keys of all files of a job begin with. Raises UnknownJobError for what is no id."""
    check_job_id(job_id)
    return f"{job_id[-2:]}/{job_id}-"


def claim_of(key: str) -> tuple[str, int] | None:
    """Returns the job and the counter that a key belongs to, None for what is no file of a claim."""
    match = _NAME.fullmatch(key)
    return (match[1], int(match[2])) if match else None
