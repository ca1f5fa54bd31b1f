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


def cells_tables(figures: dict[str, Any]) -> str:
    """Returns what the engine did, case by case, and the ratios that bars are about."""
    machine, cases = figures["machine"], figures["cases"]
    pictures = {name: case for name, case in cases.items() if "step_ms" in case or "failed" in case}
    lines = [
        "# The engine on a GPU",
        "",
        f"{machine.get('gpu', machine['processor'])}, torch {machine['torch']}, diffusers {machine['diffusers']}, "
        f"torchao {machine.get('torchao', 'absent')}; `{machine['command']}`. Full-size architectures, random weights.",
        "",
        "| case | step, ms | picture, s (steps) | load, s | peak, GB | compiled while painting | scheme, tier, speed |",
        "|---|---|---|---|---|---|---|",
        *(_cell_row(name, case) for name, case in pictures.items()),
        "",
        *_ratios(cases),
        *_rest(cases, pictures),
    ]
    return "\n".join(lines) + "\n"


def _cell_row(name: str, case: dict[str, Any]) -> str:
    if "failed" in case:
        return f"| {name} | {case['failed']} | | | | | |"
    engaged = case.get("engaged", {})
    told = "; ".join(_short(str(engaged[knob])) for knob in ("scheme", "offload", "compile") if knob in engaged)
    load = case.get("load_s", case.get("cold_load_s", ""))
    picture = f"{case['picture_s']:.3f} ({case['steps']})"
    peak, graphs = f"{case['peak_bytes'] / GB:.2f}", case["recompiles_while_painting"]
    return f"| {name} | {case['step_ms']:.1f} | {picture} | {load} | {peak} | {graphs} | {told} |"


def _short(told: str) -> str:
    """Returns what engaged, without why, and without components that stay dense."""
    words = told.partition(":")[0].partition(" (planned")[0].split(", ")
    return ", ".join(word for word in words if not word.endswith("=none")) or "dense"


def _ratios(cases: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yields steps and pictures against stock diffusers."""
    stock = cases.get("flux.1-dev, stock diffusers", {})
    for name, case in cases.items():
        if name.startswith("flux.1-dev, ") and case is not stock and "step_ms" in case and "step_ms" in stock:
            step = stock["step_ms"] / case["step_ms"]
            is_whole = case["steps"] == stock["steps"]
            picture = f", a picture {stock['picture_s'] / case['picture_s']:.2f} times" if is_whole else ""
            yield f"- {name}: a step {step:.2f} times as fast as stock diffusers{picture}; equals its picture: " + (
                f"{case.get('equals_stock')} (mean difference {case.get('mean_difference')} of 255)"
            )
    again = cases.get("flux.1-dev, stock diffusers, cold load again", {})
    if "load_s" in cases.get("flux.1-dev, bf16, off", {}) and "cold_load_s" in stock:
        cold = [found["cold_load_s"] for found in (stock, again) if "cold_load_s" in found]
        yield f"- cold load from disk: {cases['flux.1-dev, bf16, off']['load_s']} s, stock diffusers {cold} s"


def _rest(cases: dict[str, dict[str, Any]], shown: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yields what has no step time."""
    for name, case in cases.items():
        if name not in shown or "recognised" in case or "ratio" in case:
            facts = {key: value for key, value in case.items() if not isinstance(value, dict) and key not in COMMON}
            yield f"- {name}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
        for key, value in case.items():
            if isinstance(value, dict) and "is_finite" in value:
                yield f"  - {key}: {'finite' if value['is_finite'] else value.get('failed', 'not finite')}"


# What the table has.
COMMON = frozenset(
    {
        "step_ms",
        "picture_s",
        "steps",
        "peak_bytes",
        "reserved_bytes",
        "compiled_graphs",
        "recompiles_while_painting",
        "load_s",
        "load_peak_bytes",
        "planned_bytes",
        "measured_bytes",
        "offload",
    }
)
