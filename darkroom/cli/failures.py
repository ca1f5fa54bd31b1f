"""What a failure looks like: one line what happened, one line what to do next, and the exit status.

Knows the errors by their reasons. Invariant: a reason that is not listed still gets its own message and status.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from darkroom.client import errors

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# Where a field of the request is set on the command line.
OPTIONS = {
    "request.model": "--model",
    "request.prompt": "PROMPT",
    "request.negative_prompt": "--negative",
    "request.width": "--width",
    "request.height": "--height",
    "request.steps": "--steps",
    "request.guidance": "--guidance",
    "request.seed": "--seed",
    "request.format": "--format",
    "terms.deadline": "--deadline",
    "terms.priority": "--priority",
    "x-darkroom-tenant": "--tenant",
    "count": "--count",
    "order.model": "MODEL",
    "order.scheme": "--scheme",
    "order.component": "--component",
    "order.expert": "--expert",
    "order.source.kind": "--source",
    "order.base": "--base",
    "order.num_pairs": "--pairs",
    "checkpoint_id": "CHECKPOINT",
    "repo_id": "OWNER/NAME",
    "device": "--device",
}
ADVICE = {
    "UNKNOWN_MODEL": "`darkroom models` lists what there is.",
    "UNKNOWN_JOB": "`darkroom jobs list` shows the newest jobs.",
    "UNKNOWN_WORKER": "`darkroom status` shows the workers.",
    "QUEUE_FULL": "The queue is full: try again in a while, or cancel jobs (`darkroom jobs list`).",
    "NO_WORKER": "`darkroom status` tells why no worker answers; `darkroom up` starts one.",
    "NOTHING_FITS": "`darkroom plan MODEL` shows every candidate with what it would need.",
    "PLAN_REFUSED": "Leave the choice to the planner, or ask for something that it can honour.",
    "WORKER_LOST": "Ask again; the worker's log tells why it went (darkroom up prints where the logs are).",
    "ENGINE_DIED": "Ask again; if it dies each time, the worker's log tells why.",
    "ENGINE_HUNG": "Ask again; if it hangs each time, the worker's log tells where.",
    "OUT_OF_MEMORY": "Ask for a smaller picture, or free memory on the device (`darkroom status`).",
    "DISK_FULL": "Free disk space in the data folder of the gateway.",
    "SOURCE_REFUSED": "Check that the model's files are where the catalogue says (`darkroom models`).",
    "NOT_DEAD": "`darkroom jobs dead` lists what can be re-driven.",
    "POISON": "`darkroom jobs show JOB` has the evidence; `darkroom jobs redrive JOB` tries it again.",
    "NO_OUTPUT": "`darkroom jobs show JOB` tells what became of it.",
    "UNKNOWN_CHECKPOINT": "`darkroom checkpoints list --all` shows what the store has.",
    "NOT_GATED": "Build it again without --no-gates; `darkroom checkpoints show` tells what failed.",
    "PUBLISHED_OTHERWISE": "Publish to another repository, or say --replace.",
    "CORRUPT_CHECKPOINT": "Fetch or build the files that are named above anew.",
    "STORE_UNAVAILABLE": "The gateway can't reach its Redis: its log tells why.",
    "OUTPUTS_UNAVAILABLE": "The gateway can't reach its store of outputs: its log tells why.",
    "DEADLINE_EXCEEDED": "Allow more time, or see what keeps the workers busy: `darkroom status`.",
    "CANCELLED": "Somebody cancelled the job; ask again if that was a mistake.",
    "INTERNAL": "This is a bug in Darkroom: the log of the service that failed has the traceback.",
}
UNREACHABLE_ADVICE = "Start one with `darkroom up`, or name one with --address or DARKROOM_ADDRESS."


class UserError(Exception):
    """A failure of the command itself.

    Args:
        what: what happened.
        advice: what to do next.
        exit_code: 1, or 2 where the command line is wrong.
    """

    def __init__(self, what: str, advice: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(what)
        self.advice = advice
        self.exit_code = exit_code


def report_failure(failure: Exception) -> int:
    """Prints an expected failure and returns its exit status; raises anything else."""
    what, advice, exit_code = _describe(failure)
    print_failure(what, advice)
    return exit_code


def report_usage(wrong: Any) -> int:
    """Prints what is wrong with a command line (click's UsageError) and returns the exit status."""
    if type(wrong).__name__ == "NoArgsIsHelpError":
        wrong.show()
    else:
        path = wrong.ctx.command_path if wrong.ctx is not None else "darkroom"
        print_failure(wrong.format_message(), f"`{path} --help` has examples.")
    return EXIT_USAGE


def print_failure(what: str, advice: str) -> None:
    """Prints the two lines on stderr."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(what)}")
    if advice:
        console.print(f"[dim]  next:[/] {escape(advice)}")


def _describe(failure: Exception) -> tuple[str, str, int]:
    from darkroom.client import errors

    match failure:
        case UserError():
            return str(failure), failure.advice, failure.exit_code
        case errors.InvalidRequestError():
            return _describe_violations(failure), "Change what is named above; --help has examples.", EXIT_USAGE
        case errors.DarkroomError():
            return failure.message, _advice(failure), EXIT_FAILED
        case BrokenPipeError():
            # The reader has seen enough: `darkroom jobs list | head`. Nothing may be flushed to it at exit.
            sys.stdout = None
            return "the reader of the output went away", "", EXIT_FAILED
        case OSError():
            return _describe_os_error(failure), "Check the path and its permissions.", EXIT_FAILED
    raise failure


def _describe_violations(failure: errors.InvalidRequestError) -> str:
    if not failure.violations:
        return failure.message
    return "; ".join(f"{OPTIONS.get(field, field)}: {problem}" for field, problem in failure.violations.items())


def _advice(failure: errors.DarkroomError) -> str:
    if failure.reason == "UNAVAILABLE":
        return UNREACHABLE_ADVICE
    if failure.reason in ADVICE:
        return ADVICE[failure.reason]
    if failure.retry_after_s is not None:
        return f"Try again in {failure.retry_after_s:.0f} s."
    return "Try again." if failure.is_retryable else f"The reason is {failure.reason}."


def _describe_os_error(failure: OSError) -> str:
    name = f"{failure.filename}: " if failure.filename else ""
    return f"{name}{failure.strerror or failure}"
