"""The verdict as the file that lies beside a checkpoint, and as the message that callers see.

Knows nothing of how anything is measured. Invariant: what a file says comes back as the same message.
"""

from __future__ import annotations

from google.protobuf import json_format

from darkroom.artifacts.gates import Gates
from darkroom.v1 import checkpoint_pb2

# The result that holds what is no check: pairs, device, what was not run.
SCOPE = "scope"


def to_gates(report: checkpoint_pb2.GateReport) -> Gates:
    """Returns the verdict as it is kept."""
    results = [
        {"name": check.name, "passed": check.has_passed, "measured": check.measured, "wanted": check.wanted}
        for check in report.checks
    ]
    pairs = [json_format.MessageToDict(pair, preserving_proto_field_name=True) for pair in report.pairs]
    scope = {"name": SCOPE, "passed": True, "device": report.device, "not_run": list(report.not_run), "pairs": pairs}
    return Gates(report.checkpoint_id, [*results, scope])


def to_report(gates: Gates) -> checkpoint_pb2.GateReport:
    """Returns the verdict as a message."""
    report = checkpoint_pb2.GateReport(checkpoint_id=gates.artifact, has_passed=gates.is_passed)
    for result in gates.results:
        if result.get("name") == SCOPE:
            report.device = str(result.get("device", ""))
            report.not_run.extend(map(str, result.get("not_run", ())))
            for pair in result.get("pairs", ()):
                report.pairs.append(json_format.ParseDict(pair, checkpoint_pb2.GatePair()))
        else:
            report.checks.add(
                name=str(result.get("name")),
                has_passed=result.get("passed") is True,
                measured=str(result.get("measured", "")),
                wanted=str(result.get("wanted", "")),
            )
    return report
