"""The command `darkroom`: one file a group of commands, over `darkroom.client`.

Everything heavy is imported by the command that needs it, so that `--help` is quick. Knows nothing of services but how
to start them as programs. Invariant: no traceback reaches a user for what can be expected.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command and exits: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    import os

    # gRPC's own log says what the command says better, and says it into the middle of a progress bar.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from darkroom.cli.application import run

        exit_code = run()
    except KeyboardInterrupt:
        exit_code = 130
    raise SystemExit(exit_code)
