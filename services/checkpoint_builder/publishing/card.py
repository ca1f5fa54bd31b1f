"""The model card of a repository of checkpoints: one head, and a section a checkpoint.

Knows nothing of the Hub. Invariants: everything in a section comes from manifest and verdict; a section of another
checkpoint, and what a person wrote around the sections, is kept as it is.
"""

from __future__ import annotations

import re

from darkroom.v1 import checkpoint_pb2, device_pb2

SECTION = re.compile(r"<!-- checkpoint (\S+) -->.*?<!-- /checkpoint -->\n?", re.DOTALL)
# Licences that the Hub has no word for.
CUSTOM = "LicenseRef-"


def write_card(checkpoint: checkpoint_pb2.Checkpoint, repo_id: str, existing: str = "") -> str:
    """Returns the card: a new one, or the existing one with this checkpoint's section in it.

    Args:
        checkpoint: with its verdict.
        repo_id: where it goes.
        existing: the card that is there; empty for none.
    """
    section = _section(checkpoint, repo_id)
    if not existing:
        return f"{_head(checkpoint)}\n{section}"
    found = [match for match in SECTION.finditer(existing) if match.group(1) == checkpoint.name]
    if found:
        return existing[: found[0].start()] + section + existing[found[0].end() :]
    return f"{existing.rstrip()}\n\n{section}"


def is_ours(card: str) -> bool:
    """Tells whether a card has sections of checkpoints."""
    return SECTION.search(card) is not None


def _head(checkpoint: checkpoint_pb2.Checkpoint) -> str:
    licence = checkpoint.license
    lines = [f"license: {licence.lower()}"]
    if licence.startswith(CUSTOM):
        lines = ["license: other", f"license_name: {licence.removeprefix(CUSTOM).lower()}"]
    if "/" in checkpoint.base:
        lines += [f"base_model: {checkpoint.base}", "base_model_relation: quantized"]
    front = "\n".join([*lines, "library_name: diffusers", "tags:", "- darkroom"])
    title = checkpoint.base.rpartition("/")[2]
    about = (
        f"Components of `{checkpoint.base}` as Darkroom loads them: quantised beforehand, bit for bit what quantising\n"
        "at load time gives, without the dense weights ever being read. The licence is the model's own."
    )
    return f"---\n{front}\n---\n\n# {title}, quantised\n\n{about}\n"


def _section(checkpoint: checkpoint_pb2.Checkpoint, repo_id: str) -> str:
    versions, gates = checkpoint.versions, checkpoint.gates
    scheme = device_pb2.Scheme.Name(checkpoint.scheme).removeprefix("SCHEME_").lower()
    share = f"{100 * checkpoint.size_bytes / checkpoint.dense_bytes:.0f} %" if checkpoint.dense_bytes else "a part"
    rows = [
        f"| component | `{checkpoint.component}` of `{checkpoint.base}` |",
        f"| scheme | {scheme} |",
        f"| size | {checkpoint.size_bytes:,} bytes, {share} of the dense component |",
        f"| tensors | {checkpoint.num_tensors}, of them {checkpoint.num_quantised} in the scheme |",
        f"| id | `{checkpoint.id}` |",
        f"| source | sha256 `{checkpoint.source_sha256}` |",
        f"| licence | {checkpoint.license} |",
        f"| made with | torch {versions.torch}, torchao {versions.torchao}, diffusers {versions.diffusers}, "
        f"transformers {versions.transformers} |",
    ]
    checks = [
        f"| {check.name} | {'passed' if check.has_passed else 'failed'} | {check.measured} | {check.wanted} |"
        for check in gates.checks
    ]
    text = [f"<!-- checkpoint {checkpoint.name} -->", f"## {checkpoint.name}", "", "| | |", "|---|---|", *rows, ""]
    text += ["| gate | | measured | wanted |", "|---|---|---|---|", *checks, ""]
    if gates.pairs:
        text += [
            f"{len(gates.pairs)} pairs of pictures on {gates.device}, seed for seed, the dense model's on the left:",
            "",
            f"![pairs](https://huggingface.co/{repo_id}/resolve/main/{checkpoint.name}.png)",
            "",
        ]
    text += [f"Not run: {note}." for note in gates.not_run]
    return "\n".join([*text, "<!-- /checkpoint -->", ""])
