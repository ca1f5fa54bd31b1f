"""Rules that every contract keeps, checked on the descriptors."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor, MethodDescriptor

PROTOS = sorted((Path(__file__).resolve().parents[2] / "protos/darkroom/v1").glob("*.proto"))
FILES: list[FileDescriptor] = [importlib.import_module(f"darkroom.v1.{path.stem}_pb2").DESCRIPTOR for path in PROTOS]
METHODS: list[MethodDescriptor] = [
    method for file in FILES for service in file.services_by_name.values() for method in service.methods
]
# Only the messages with free keys: facts whose units are in the keys.
ALLOWED_MAPS = {"darkroom.v1.Error.metadata"}


def fields() -> list[FieldDescriptor]:
    return [field for file in FILES for message in file.message_types_by_name.values() for field in message.fields]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_package_is_versioned_and_mirrors_the_folder(file: FileDescriptor) -> None:
    assert file.package == "darkroom.v1"
    assert file.name.startswith("darkroom/v1/")


def test_every_enum_starts_at_unspecified() -> None:
    enums = [enum for file in FILES for enum in file.enum_types_by_name.values()]
    assert enums
    assert [enum.full_name for enum in enums if not enum.values_by_number[0].name.endswith("_UNSPECIFIED")] == []


def test_no_two_methods_share_a_request_or_a_response() -> None:
    messages = [message.full_name for method in METHODS for message in (method.input_type, method.output_type)]
    assert len(messages) == len(set(messages))


def test_every_list_is_paged() -> None:
    lists = [method for method in METHODS if method.name.startswith("List")]
    assert lists
    for method in lists:
        assert {"page_size", "page_token"} <= set(method.input_type.fields_by_name)
        assert method.output_type.fields_by_name["next_page_token"]
        assert method.output_type.fields_by_number[1].is_repeated


def test_what_creates_a_job_takes_a_request_id() -> None:
    creating = [method for method in METHODS if method.full_name.startswith("darkroom.v1.GenerationService.")]
    takers = {method.name for method in creating if "request_id" in method.input_type.fields_by_name}
    assert takers == {"SubmitJob", "Generate", "RedriveJob"}


def test_parameters_do_not_hide_in_maps() -> None:
    maps = {
        field.full_name
        for field in fields()
        if field.message_type is not None and field.message_type.GetOptions().map_entry
    }
    assert maps == ALLOWED_MAPS


def test_quantities_carry_their_unit_in_the_name() -> None:
    suspicious = ("memory", "size", "timeout", "duration", "latency")
    bare = [
        field.full_name
        for field in fields()
        if field.message_type is None and field.enum_type is None and field.name in suspicious
    ]
    assert bare == []


def test_zero_is_a_value_where_it_means_something() -> None:
    request = next(file for file in FILES if file.name.endswith("/generation.proto")).message_types_by_name[
        "GenerationRequest"
    ]
    for name in ("seed", "guidance", "steps", "negative_prompt"):
        assert request.fields_by_name[name].has_presence
