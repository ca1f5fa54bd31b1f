"""Registers a servicer by its service descriptor, with one wrapper around every method.

The wrapper parses the request itself, so that garbage is INVALID_ARGUMENT rather than INTERNAL; turns our errors into
statuses with details; gives unary calls an upper limit of time; and binds a call id to the log. A servicer's methods
take a parsed request and grpc.aio's context, and raise errors of `darkroom.rpc.errors`.
Invariant: no exception leaves a handler as UNKNOWN.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf import message, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from darkroom.rpc.errors import DarkroomError, DeadlineError, InternalError, MalformedMessageError
from darkroom.rpc.logs import log
from darkroom.rpc.status import to_status

# A unary call that brings no deadline, or a longer one, gets this one.
UNARY_LIMIT_S = 60.0

UnaryMethod = Callable[[Any, grpc.aio.ServicerContext], Awaitable[message.Message]]
StreamMethod = Callable[[Any, grpc.aio.ServicerContext], AsyncGenerator[message.Message, None]]


def add_servicer(server: grpc.aio.Server, servicer: object, service: ServiceDescriptor) -> None:
    """Serves `service` with `servicer`'s methods of the same names.

    Raises:
        TypeError: the servicer lacks a method, or the service has a client stream.
    """
    handlers = {}
    for method in service.methods:
        behaviour = getattr(servicer, method.name, None)
        if behaviour is None or method.client_streaming:
            raise TypeError(f"{type(servicer).__name__} can't serve {method.full_name}")
        wrap = _stream_handler if method.server_streaming else _unary_handler
        handlers[method.name] = wrap(behaviour, method)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _unary_handler(behaviour: UnaryMethod, method: MethodDescriptor) -> grpc.RpcMethodHandler:
    request_class = message_factory.GetMessageClass(method.input_type)

    async def handle(raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        async with _answered(context, method):
            limit_s = min(UNARY_LIMIT_S, context.time_remaining() or UNARY_LIMIT_S)
            try:
                async with asyncio.timeout(limit_s):
                    answer = await behaviour(_parse(request_class, raw, method), context)
            except TimeoutError as late:
                raise DeadlineError(f"{method.name} took longer than {limit_s:.1f} s") from late
            return answer.SerializeToString()
        raise AssertionError("unreachable: an aborted call does not return")

    return grpc.unary_unary_rpc_method_handler(handle)


def _stream_handler(behaviour: StreamMethod, method: MethodDescriptor) -> grpc.RpcMethodHandler:
    request_class = message_factory.GetMessageClass(method.input_type)

    async def handle(raw: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        async with _answered(context, method):
            answers = behaviour(_parse(request_class, raw, method), context)
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    yield answer.SerializeToString()

    return grpc.unary_stream_rpc_method_handler(handle)


@contextlib.asynccontextmanager
async def _answered(context: grpc.aio.ServicerContext, method: MethodDescriptor) -> AsyncIterator[None]:
    """Turns whatever the block raises into a status with details."""
    with structlog.contextvars.bound_contextvars(call_id=uuid.uuid4().hex[:12], method=method.full_name):
        try:
            yield
        except DarkroomError as error:
            await context.abort_with_status(to_status(error))
        except (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError):
            raise
        except Exception as bug:  # the RPC boundary: a bug answers INTERNAL, and its traceback stays here
            log.exception("call_failed")
            text = f"{method.name} failed with {type(bug).__name__}; the log of this service has the traceback"
            await context.abort_with_status(to_status(InternalError(text)))


def _parse(request_class: type[message.Message], raw: bytes, method: MethodDescriptor) -> message.Message:
    try:
        return request_class.FromString(raw)
    except message.DecodeError as garbage:
        raise MalformedMessageError(f"the request is not a {method.input_type.full_name}: {garbage}") from garbage
