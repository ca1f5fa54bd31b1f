"""Reads tables of TOML into frozen dataclasses, and tells every problem with its file, its key and what would be right.

A field's type is its rule: a missing key without a default, an unknown key, another type, or a value that a rule in
`Annotated[...]` refuses is a problem. A field may be a protobuf message: then its descriptor is the schema. Knows
nothing of models. Invariant: what `read` returns has been checked whole.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf import message_factory
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from darkroom.rpc.errors import InvalidCatalogueError

Record = TypeVar("Record")


@dataclass(frozen=True)
class Choice:
    """A word that stands for a value of a protobuf enum: "denoiser" for COMPONENT_ROLE_DENOISER."""

    enum: EnumDescriptor

    @functools.cached_property
    def words(self) -> dict[str, int]:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", self.enum.name).upper() + "_"
        values = self.enum.values
        return {item.name.removeprefix(prefix).lower(): item.number for item in values if item.number != 0}

    def word(self, value: int) -> str:
        """Returns the word for an enum value; "unspecified" for zero."""
        return next((word for word, number in self.words.items() if number == value), "unspecified")

    def read(self, value: Any) -> Any:
        return self.words.get(value) if isinstance(value, str) else None

    def describe(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True)
class AtLeast:
    """A number that is not less than `least`."""

    least: float

    def read(self, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and value >= self.least else None

    def describe(self) -> str:
        return f"a number of at least {self.least:g}"


# Names of tables from the top of a file down; "[2]" for the third of a list.
Path = tuple[str, ...]


@dataclass
class Problems:
    """What is wrong, collected so that all of it is told at once."""

    # Tells the file and the key, as written there, of a path.
    locate: Callable[[Path], tuple[str, Path]]
    found: list[str] = field(default_factory=list)

    def add(self, path: Path, value: object, right: str) -> None:
        file, full = self.locate(path)
        told = "missing" if value is None else f"= {value!r}"
        self.found.append(f"{file}: {shown(full)} {told}: should be {right}")

    def add_unknown(self, path: Path, value: object, known: Iterable[str]) -> None:
        close = difflib.get_close_matches(path[-1], list(known), 1)
        self.add(path, value, f"left out; did you mean {close[0]}?" if close else "left out: there is no such key")

    def raise_any(self) -> None:
        if self.found:
            raise InvalidCatalogueError("\n".join(self.found), num_problems=len(self.found))


def shown(path: Path) -> str:
    """Returns a path as TOML writes a key."""
    text = ""
    for part in path:
        is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", part) is not None
        text += part if part.startswith("[") else "." + (part if is_bare else f'"{part}"')
    return text.removeprefix(".")


def read(record: type[Record], table: Mapping[str, Any], locate: Callable[[Path], tuple[str, Path]]) -> Record:
    """Returns `table` as a `record`.

    Args:
        record: a frozen dataclass whose annotations are the schema.
        table: as tomllib gives it.
        locate: tells the file and the full key of a path in `table`, for the problems.

    Raises:
        InvalidCatalogueError: anything is wrong; its message has one line a problem.
    """
    problems = Problems(locate)
    value = _read_record(record, table, (), problems)
    problems.raise_any()
    return typing.cast(Record, value)


@functools.cache
def _fields(record: Any) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(record, include_extras=True)
    missing = dataclasses.MISSING
    return {
        item.name: (hints[item.name], item.default is missing and item.default_factory is missing)
        for item in dataclasses.fields(record)
        if item.init
    }


def _read_record(record: Any, table: Any, key: Path, problems: Problems) -> Any:
    if not isinstance(table, Mapping):
        problems.add(key, table, "a table")
        return None
    fields = _fields(record)
    for name in table.keys() - fields.keys():
        problems.add_unknown((*key, name), table[name], fields)
    values = {}
    for name, (hint, is_needed) in fields.items():
        if name in table:
            values[name] = _read_value(hint, table[name], (*key, name), problems)
        elif is_needed:
            problems.add((*key, name), None, "given")
    return None if problems.found else record(**values)


def _read_value(hint: Any, value: Any, key: Path, problems: Problems) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        rule = arguments[1]
        result = rule.read(value)
        if result is None:
            problems.add(key, value, rule.describe())
        return result
    if origin is types.UnionType:
        return _read_value(arguments[0], value, key, problems)
    if isinstance(hint, type) and issubclass(hint, Message):
        return _read_message(hint, value, key, problems)
    if dataclasses.is_dataclass(hint):
        return _read_record(hint, value, key, problems)
    if origin is tuple:
        return _read_tuple(arguments[0], value, key, problems)
    if origin is dict:
        return _read_dict(arguments[0], arguments[1], value, key, problems)
    return _read_plain(hint, value, key, problems)


def _read_tuple(hint: Any, value: Any, key: Path, problems: Problems) -> Any:
    if not isinstance(value, list | tuple):
        problems.add(key, value, "a list")
        return ()
    return tuple(_read_value(hint, item, (*key, f"[{index}]"), problems) for index, item in enumerate(value))


def _read_dict(key_hint: Any, hint: Any, value: Any, key: Path, problems: Problems) -> Any:
    if not isinstance(value, Mapping):
        problems.add(key, value, "a table")
        return {}
    return {
        _read_value(key_hint, name, (*key, name), problems): _read_value(hint, item, (*key, name), problems)
        for name, item in value.items()
    }


_SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: str,
    FieldDescriptor.CPPTYPE_INT32: int,
    FieldDescriptor.CPPTYPE_INT64: int,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_BOOL: bool,
}


def _read_message(kind: type[Message], table: Any, key: Path, problems: Problems) -> Message:
    message = kind()
    if not isinstance(table, Mapping):
        problems.add(key, table, "a table")
        return message
    fields = kind.DESCRIPTOR.fields_by_name
    for name, value in table.items():
        if name not in fields:
            problems.add_unknown((*key, name), value, fields)
            continue
        hint = _hint_of(fields[name])
        if fields[name].is_repeated:
            getattr(message, name).extend(_read_tuple(hint, value, (*key, name), problems))
        elif (result := _read_value(hint, value, (*key, name), problems)) is not None:
            _assign(message, name, result)
    return message


def _hint_of(item: Any) -> Any:
    if item.enum_type is not None:
        return typing.Annotated[int, Choice(item.enum_type)]
    if item.message_type is not None:
        return message_factory.GetMessageClass(item.message_type)
    return _SCALARS[item.cpp_type]


def _assign(message: Message, name: str, value: Any) -> None:
    if isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    else:
        setattr(message, name, value)


_PLAIN_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _read_plain(hint: Any, value: Any, key: Path, problems: Problems) -> Any:
    if hint is Any or type(value) is hint:
        return value
    if hint is float and type(value) is int:
        return float(value)
    problems.add(key, value, _PLAIN_NAMES.get(hint, str(hint)))
    return None
