"""The tree of Darkroom's errors: what can go wrong, whether a retry helps, and which status code it becomes.

    DarkroomError
    ├── InvalidRequestError      INVALID_ARGUMENT     INVALID_REQUEST       a field is wrong; the caller changes it
    │   └── MalformedMessageError                     MALFORMED_MESSAGE     the bytes are no message of this type
    ├── NotFoundError            NOT_FOUND
    │   ├── UnknownModelError                         UNKNOWN_MODEL
    │   ├── UnknownJobError                           UNKNOWN_JOB
    │   ├── UnknownWorkerError                        UNKNOWN_WORKER
    │   ├── UnknownBuildError                         UNKNOWN_BUILD
    │   └── UnknownCheckpointError                    UNKNOWN_CHECKPOINT
    ├── ConflictError            ALREADY_EXISTS
    │   ├── RequestIdReusedError                      REQUEST_ID_REUSED     same request_id, another request
    │   └── PublishedOtherwiseError                   PUBLISHED_OTHERWISE   the repository has other bytes of that name
    ├── PreconditionError        FAILED_PRECONDITION
    │   ├── PlanRefusedError                          PLAN_REFUSED          an explicit wish can't be honoured
    │   ├── NothingFitsError                          NOTHING_FITS          every candidate needs more than there is
    │   ├── WorkerHeldError                           WORKER_HELD           another token holds the worker
    │   ├── NotLoadedError                            NOT_LOADED            another model, or none, is loaded
    │   ├── KernelFailedError                         KERNEL_FAILED         a kernel, compilation or quantisation failed
    │   ├── NoOutputError                             NO_OUTPUT             the job has no file
    │   ├── PoisonError                               POISON                the job ended its engine process repeatedly
    │   ├── NotDeadError                              NOT_DEAD              only dead jobs are re-driven
    │   ├── NotGatedError                             NOT_GATED             the checkpoint has not passed its gates
    │   ├── InvalidCatalogueError                     INVALID_CATALOGUE     a file of model facts is wrong
    │   └── SourceRefusedError                        SOURCE_REFUSED        untrusted, gated or missing checkpoint
    ├── OffsetError              OUT_OF_RANGE         OFFSET_PAST_END
    ├── StaleTokenError          ABORTED              STALE_TOKEN           a newer claim exists
    ├── ExhaustedError           RESOURCE_EXHAUSTED
    │   ├── QueueFullError                            QUEUE_FULL            retry after the given time
    │   ├── OutOfMemoryError                          OUT_OF_MEMORY
    │   └── DiskFullError                             DISK_FULL
    ├── UnavailableError         UNAVAILABLE
    │   ├── NoWorkerError                             NO_WORKER             nobody there to run it
    │   ├── NoPlannerError                            NO_PLANNER            the planner does not answer
    │   ├── WorkerLostError                           WORKER_LOST           the worker stopped answering
    │   ├── EngineDiedError                           ENGINE_DIED           the engine process ended, supervisor alive
    │   ├── EngineHungError                           ENGINE_HUNG           no progress within the idle budget; killed
    │   ├── DrainingError                             DRAINING              the service is stopping
    │   ├── StoreUnavailableError                     STORE_UNAVAILABLE     Redis does not answer
    │   └── OutputsUnavailableError                   OUTPUTS_UNAVAILABLE   the store of outputs does not answer
    ├── CancelledError           CANCELLED            CANCELLED             somebody asked for it
    ├── DeadlineError            DEADLINE_EXCEEDED    DEADLINE_EXCEEDED
    ├── DataLossError            DATA_LOSS
    │   ├── CorruptCheckpointError                    CORRUPT_CHECKPOINT
    │   └── BrokenOutputError                         BROKEN_OUTPUT         non-finite or constant picture
    ├── UnsupportedError         UNIMPLEMENTED        UNSUPPORTED           never supported by this service
    └── InternalError            INTERNAL             INTERNAL              our own bug

Knows nothing of gRPC's types. Invariant: an error that crosses the wire as `darkroom.v1.Error` comes back as the class
that it left as, told by its reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import ClassVar

from darkroom.v1 import error_pb2


class Code(enum.IntEnum):
    """The numbers of google.rpc.Code that Darkroom uses."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class DarkroomError(Exception):
    """Base of all expected failures.

    Args:
        message: what happened and what to do next, for people.
        retry_after_s: how long to wait before trying again; None where waiting alone does not help.
        facts: what a program may read, with units in the keys: `needed_bytes=…`.
    """

    code: ClassVar[Code] = Code.UNKNOWN
    reason: str = "UNKNOWN"
    is_retryable: bool = False

    def __init__(self, message: str, *, retry_after_s: float | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.facts = {key: str(value) for key, value in facts.items()}


class InvalidRequestError(DarkroomError):
    """One or more fields are wrong. `violations` maps a field's path to what came and what would be right."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"

    def __init__(self, violations: Mapping[str, str], *, retry_after_s: float | None = None, **facts: object) -> None:
        sentence = "; ".join(f"{field}: {problem}" for field, problem in violations.items())
        super().__init__(sentence, retry_after_s=retry_after_s, **facts)
        self.violations = dict(violations)


class MalformedMessageError(DarkroomError):
    code = Code.INVALID_ARGUMENT
    reason = "MALFORMED_MESSAGE"


class NotFoundError(DarkroomError):
    code = Code.NOT_FOUND
    reason = "NOT_FOUND"


class UnknownModelError(NotFoundError):
    reason = "UNKNOWN_MODEL"


class UnknownJobError(NotFoundError):
    reason = "UNKNOWN_JOB"


class UnknownWorkerError(NotFoundError):
    reason = "UNKNOWN_WORKER"


class UnknownBuildError(NotFoundError):
    reason = "UNKNOWN_BUILD"


class UnknownCheckpointError(NotFoundError):
    reason = "UNKNOWN_CHECKPOINT"


class ConflictError(DarkroomError):
    code = Code.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class RequestIdReusedError(ConflictError):
    reason = "REQUEST_ID_REUSED"


class PublishedOtherwiseError(ConflictError):
    reason = "PUBLISHED_OTHERWISE"


class PreconditionError(DarkroomError):
    code = Code.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class PlanRefusedError(PreconditionError):
    reason = "PLAN_REFUSED"


class NothingFitsError(PreconditionError):
    reason = "NOTHING_FITS"


class WorkerHeldError(PreconditionError):
    reason = "WORKER_HELD"


class NotLoadedError(PreconditionError):
    reason = "NOT_LOADED"


class KernelFailedError(PreconditionError):
    reason = "KERNEL_FAILED"


class NoOutputError(PreconditionError):
    reason = "NO_OUTPUT"


class PoisonError(PreconditionError):
    reason = "POISON"


class NotDeadError(PreconditionError):
    reason = "NOT_DEAD"


class NotGatedError(PreconditionError):
    reason = "NOT_GATED"


class InvalidCatalogueError(PreconditionError):
    reason = "INVALID_CATALOGUE"


class SourceRefusedError(PreconditionError):
    reason = "SOURCE_REFUSED"


class OffsetError(DarkroomError):
    code = Code.OUT_OF_RANGE
    reason = "OFFSET_PAST_END"


class StaleTokenError(DarkroomError):
    code = Code.ABORTED
    reason = "STALE_TOKEN"


class ExhaustedError(DarkroomError):
    code = Code.RESOURCE_EXHAUSTED
    reason = "RESOURCE_EXHAUSTED"
    is_retryable = True


class QueueFullError(ExhaustedError):
    reason = "QUEUE_FULL"


class OutOfMemoryError(ExhaustedError):
    reason = "OUT_OF_MEMORY"
    is_retryable = False


class DiskFullError(ExhaustedError):
    reason = "DISK_FULL"


class UnavailableError(DarkroomError):
    code = Code.UNAVAILABLE
    reason = "UNAVAILABLE"
    is_retryable = True


class NoWorkerError(UnavailableError):
    reason = "NO_WORKER"


class NoPlannerError(UnavailableError):
    reason = "NO_PLANNER"


class WorkerLostError(UnavailableError):
    reason = "WORKER_LOST"


class EngineDiedError(UnavailableError):
    reason = "ENGINE_DIED"


class EngineHungError(UnavailableError):
    reason = "ENGINE_HUNG"


class DrainingError(UnavailableError):
    reason = "DRAINING"


class StoreUnavailableError(UnavailableError):
    reason = "STORE_UNAVAILABLE"


class OutputsUnavailableError(UnavailableError):
    reason = "OUTPUTS_UNAVAILABLE"


class CancelledError(DarkroomError):
    code = Code.CANCELLED
    reason = "CANCELLED"


class DeadlineError(DarkroomError):
    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class DataLossError(DarkroomError):
    code = Code.DATA_LOSS
    reason = "DATA_LOSS"


class CorruptCheckpointError(DataLossError):
    reason = "CORRUPT_CHECKPOINT"


class BrokenOutputError(DataLossError):
    reason = "BROKEN_OUTPUT"


class UnsupportedError(DarkroomError):
    code = Code.UNIMPLEMENTED
    reason = "UNSUPPORTED"


class InternalError(DarkroomError):
    code = Code.INTERNAL
    reason = "INTERNAL"


def _tree(root: type[DarkroomError]) -> Iterator[type[DarkroomError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


ERRORS_BY_REASON: dict[str, type[DarkroomError]] = {leaf.reason: leaf for leaf in _tree(DarkroomError)}


def error_to_message(error: DarkroomError) -> error_pb2.Error:
    """Returns the error as data, to be kept or sent."""
    message = error_pb2.Error(
        code=int(error.code),
        reason=error.reason,
        message=error.message,
        is_retryable=error.is_retryable,
        metadata=error.facts,
    )
    if isinstance(error, InvalidRequestError):
        for field, problem in error.violations.items():
            message.field_violations.add(field=field, description=problem)
    return message


def error_from_message(message: error_pb2.Error) -> DarkroomError:
    """Returns the error that `message` was made of; an unknown reason becomes the base class with that reason."""
    leaf = ERRORS_BY_REASON.get(message.reason, DarkroomError)
    if issubclass(leaf, InvalidRequestError):
        error: DarkroomError = leaf({item.field: item.description for item in message.field_violations})
    else:
        error = leaf(message.message)
    error.facts = dict(message.metadata)
    if leaf is DarkroomError:
        error.code = Code(message.code) if message.code in Code._value2member_map_ else Code.UNKNOWN  # type: ignore[misc]
        error.reason = message.reason or "UNKNOWN"
        error.is_retryable = message.is_retryable
    return error
