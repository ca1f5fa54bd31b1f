"""How figures, states and messages are written for people and for programs.

Knows nothing of terminals.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable

from google.protobuf import json_format, message
from google.protobuf.timestamp_pb2 import Timestamp

from darkroom.v1 import generation_pb2, job_pb2, worker_pb2

STATE_STYLES = {
    "queued": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
    "ready": "green",
    "generating": "cyan",
    "loading": "yellow",
    "draining": "yellow",
}
SLUG_CHARACTERS = 40


def name_of(enum: object, number: int, prefix: str) -> str:
    """Returns an enum's value in lower case without its prefix: JOB_STATE_QUEUED becomes "queued"."""
    try:
        return str(enum.Name(number)).removeprefix(prefix).lower()  # type: ignore[attr-defined]
    except ValueError:
        return str(number)


def state_of(job: job_pb2.Job) -> str:
    """Returns "queued", "running", …"""
    return name_of(job_pb2.JobState, job.state, "JOB_STATE_")


def phase_of(progress: generation_pb2.Progress) -> str:
    """Returns "encoding", "denoising", …"""
    return name_of(generation_pb2.Phase, progress.phase, "PHASE_")


def worker_state_of(status: worker_pb2.WorkerStatus) -> str:
    """Returns "ready", "loading", …"""
    return name_of(worker_pb2.WorkerState, status.state, "WORKER_STATE_")


def styled_state(state: str) -> str:
    """Returns a state in its colour, as rich markup."""
    style = STATE_STYLES.get(state)
    return f"[{style}]{state}[/]" if style else state


def format_bytes(num_bytes: int) -> str:
    """Returns 1500 as "1.5 kB": powers of ten, as in the planner's sentences."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Returns 0.45 as "0.45 s", 93 as "1 min 33 s"."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_time(moment: Timestamp) -> str:
    """Returns a moment in local time."""
    return f"{moment.ToDatetime():%Y-%m-%d %H:%M:%S}Z" if moment.seconds else ""


def format_age(moment: Timestamp) -> str:
    """Returns how long ago a moment was: "3 min ago"."""
    seconds = max(0.0, time.time() - moment.ToNanoseconds() / 1e9)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def shorten(text: str, num_characters: int) -> str:
    """Returns the text on one line, cut where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= num_characters else line[: num_characters - 1] + "…"


def slug(text: str) -> str:
    """Returns a text as part of a file name: "A red apple!" becomes "a-red-apple"."""
    words = re.findall(r"[^\W_]+", text.lower())
    name = ""
    for word in words:
        if name and len(name) + 1 + len(word) > SLUG_CHARACTERS:
            break
        name = f"{name}-{word}" if name else word[:SLUG_CHARACTERS]
    return name or "picture"


def to_json(data: message.Message | Iterable[message.Message]) -> str:
    """Returns one message, or a list of them, as protobuf's JSON: numbers of 64 bits as strings."""
    if isinstance(data, message.Message):
        return json.dumps(json_format.MessageToDict(data, preserving_proto_field_name=True), indent=2)
    return json.dumps([json_format.MessageToDict(item, preserving_proto_field_name=True) for item in data], indent=2)
