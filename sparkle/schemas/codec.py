"""Bytes to messages and back: msgpack, with size and version checked here. Knows no queue."""

from __future__ import annotations

from itertools import takewhile
from typing import TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkle.errors import InvalidMessage, MessageTooLarge, UnsupportedVersion
from sparkle.schemas.message import MAJOR, MINOR, Message, Part
from sparkle.schemas.packing import pack, unpack

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The queue's max_payload: 262,144 tokens of text and their ids fit."""

MAX_DESCRIBED = 1_000
"""Of more wrong fields only the number is told: to look at each takes seconds."""

M = TypeVar("M", bound=Message)


def encode(message: Message, *, limit_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The message as msgpack. Raises MessageTooLarge over `limit_bytes`."""
    data = pack(message.model_dump(mode="python", exclude_none=True))
    if len(data) > limit_bytes:
        raise MessageTooLarge(
            f"{_kind_of(type(message))} has {len(data)} bytes but at most {limit_bytes} fit; shorten it"
        )
    return data


def decode(data: bytes, *expected: type[M], limit_bytes: int = MAX_MESSAGE_BYTES) -> M:
    """The message in `data`, one of the `expected` kinds.

    Unknown fields of a newer minor version are ignored. Raises MessageTooLarge, UnsupportedVersion for
    another major version, and InvalidMessage (naming fields, never values) for all else.
    """
    if len(data) > limit_bytes:
        raise MessageTooLarge(f"message has {len(data)} bytes but at most {limit_bytes} are read")
    fields = unpack(data)
    minor = _check_version(fields.get("v"))
    for model in expected:
        if fields.get("kind") == _kind_of(model):
            return _validate(model, fields, newer=minor > MINOR)
    raise InvalidMessage(f"kind: not one of {', '.join(_kind_of(model) for model in expected)}")


def _kind_of(model: type[Message]) -> str:
    return cast(str, model.model_fields["kind"].default)


def _check_version(version: object) -> int:
    """The minor version of a message of our major version."""
    major, dot, minor = version.partition(".") if isinstance(version, str) else ("", "", "")
    if not (dot and len(major) <= 4 and len(minor) <= 4 and major.isdecimal() and minor.isdecimal()):
        raise InvalidMessage("v: missing or not of the form major.minor")
    if int(major) != MAJOR:
        raise UnsupportedVersion(
            f"v: major version {int(major)} but this program speaks {MAJOR}; update the older"
        )
    return int(minor)


def _validate(model: type[M], fields: dict[str, object], *, newer: bool) -> M:
    try:
        return model.model_validate(fields, extra="ignore" if newer else "forbid")
    except ValidationError as error:
        raise InvalidMessage(describe(error)) from None


def describe(error: ValidationError, *, limit: int = 5) -> str:
    """What is wrong with which fields, at most `limit` of them, without any value."""
    count = error.error_count()
    if count > MAX_DESCRIBED:
        return f"message: {count} fields are wrong or not in the contract"
    names = _contract_names(Part)
    problems = [_problem(found["type"], found["loc"], found["msg"], names) for found in _problems(error)]
    more = f"; and {count - limit} more" if count > limit else ""
    return "; ".join(problems[:limit]) + more


def _problems(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _problem(type_: str, location: tuple[int | str, ...], text: str, names: frozenset[str]) -> str:
    # any other name is a key that the sender made up, or a library's word for one way to read a field
    known = takewhile(lambda part: isinstance(part, int) or part in names, location)
    place = ".".join(map(str, known)) or "message"
    if type_ in ("extra_forbidden", "invalid_key"):
        text = "has a field that is not in the contract"
    return f"{place}: {text.removeprefix('Value error, ')}"


def _contract_names(part: type[Part]) -> frozenset[str]:
    """The names of all fields of all parts of the contract, and the types that tell some parts apart."""
    below = (_contract_names(kind) for kind in part.__subclasses__())
    own = {field.alias or name for name, field in part.model_fields.items()}
    if "type" in own and isinstance(type_ := part.model_fields["type"].default, str):
        own.add(type_)
    return frozenset(own).union(*below)
