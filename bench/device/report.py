"""Tables of what was measured, in Markdown. Knows nothing of how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

GB = 1e9


def memory_table(figures: dict[str, Any]) -> str:
    """Returns predicted and measured bytes, case by case."""
    machine = figures["machine"]
    lines = [
        "# Memory on a GPU: predicted and measured",
        "",
        f"{machine.get('gpu', machine['processor'])}, torch {machine['torch']}, diffusers {machine['diffusers']}, "
        f"torchao {machine.get('torchao', 'absent')}; `{machine['command']}`. GB of 10⁹ bytes that torch.cuda counted "
        "as allocated; full-size architectures, random weights. At rest is what the model added; a peak is all there "
        "is, with the matrix libraries' workspaces (some 64 MB), which plans count in their overhead.",
        "",
        "| case | at rest: predicted | measured | off | peak: predicted | measured | off | a call, ms |",
        "|---|---|---|---|---|---|---|---|",
        *(_memory_row(name, case) for name, case in figures["cases"].items()),
    ]
    return "\n".join(lines) + "\n"


def _memory_row(name: str, case: dict[str, Any]) -> str:
    if "failed" in case:
        return f"| {name} | {case['failed']} | | | | | | |"
    return "| " + " | ".join([name, *_pair(case, "rest"), *_pair(case, "peak"), f"{case['call_ms']:,.1f}"]) + " |"


def _pair(case: dict[str, Any], which: str) -> Iterator[str]:
    foretold, measured = case[f"predicted_{which}_bytes"], case[f"{which}_bytes"]
    if foretold is None:
        yield from ("", f"{measured / GB:.3f}", "")
        return
    yield from (f"{foretold / GB:.3f}", f"{measured / GB:.3f}", f"{foretold / measured - 1:+.1%}")
