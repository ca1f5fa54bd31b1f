"""The one table between our errors and gRPC statuses, both ways.

A failed call carries `google.rpc.Status` with exactly one `ErrorInfo`, and `BadRequest`, `RetryInfo`, `QuotaFailure`
where they fit. Invariant: what `to_status` writes, `from_rpc_error` reads back as the same class.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from darkroom.rpc.errors import (
    Code,
    DarkroomError,
    DeadlineError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
    error_from_message,
    error_to_message,
)
from darkroom.v1 import error_pb2

DOMAIN = "darkroom.dev"
# Trailers share gRPC's 8 KiB metadata default; long texts are cut so that the details always arrive.
MAX_TEXT_CHARACTERS = 1500
MAX_VIOLATIONS = 16


def to_status(error: DarkroomError) -> grpc.Status:
    """Returns what an aborted call sends."""
    data = error_to_message(error)
    status = status_pb2.Status(code=data.code, message=_cut(data.message))
    for detail in _details(error, data):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return rpc_status.to_status(status)


def _details(error: DarkroomError, data: error_pb2.Error) -> list[message.Message]:
    metadata = {key: _cut(value) for key, value in data.metadata.items()}
    details: list[message.Message] = [error_details_pb2.ErrorInfo(reason=data.reason, domain=DOMAIN, metadata=metadata)]
    if isinstance(error, InvalidRequestError):
        bad = error_details_pb2.BadRequest()
        for field, problem in list(error.violations.items())[:MAX_VIOLATIONS]:
            bad.field_violations.add(field=field, description=_cut(problem))
        details.append(bad)
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(retry)
    if isinstance(error, QueueFullError):
        quota = error_details_pb2.QuotaFailure()
        quota.violations.add(subject=error.facts.get("subject", "queue"), description=_cut(error.message))
        details.append(quota)
    return details


def from_rpc_error(failure: grpc.RpcError) -> DarkroomError:
    """Returns our error for a failed call; a status without our details becomes the class that fits its code."""
    status = rpc_status.from_call(failure)
    if status is None:
        return _from_bare_code(failure)
    data = error_pb2.Error(code=status.code, message=status.message)
    retry_after_s = None
    for detail in status.details:
        info, bad, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            data.reason = info.reason
            data.metadata.update(info.metadata)
        elif detail.Unpack(bad):
            for violation in bad.field_violations:
                data.field_violations.add(field=violation.field, description=violation.description)
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    error = error_from_message(data)
    error.retry_after_s = retry_after_s
    return error


def _from_bare_code(failure: grpc.RpcError) -> DarkroomError:
    code = failure.code()
    text = failure.details() or code.name
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(text)
    number = code.value[0]
    return error_from_message(error_pb2.Error(code=number, reason=Code(number).name, message=text))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 1] + "…"
