"""Exported JSON Schemas equal the models; subjects and ids have their exact forms."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from sparkle.errors import InvalidMessage
from sparkle.schemas import subjects
from sparkle.schemas.export import MESSAGES, file_name, schema_text
from sparkle.schemas.ids import job_id_from, new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.message import Message
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress

FOLDER = Path(__file__).parents[2] / "sparkle" / "schemas" / "v1"


@pytest.mark.parametrize("message", MESSAGES, ids=file_name)
def test_the_exported_schema_is_the_models(message: type[Message]) -> None:
    kept = (FOLDER / file_name(message)).read_text(encoding="utf-8")
    assert kept == schema_text(message), "run python -m sparkle.schemas.export"
    jsonschema.Draft202012Validator.check_schema(json.loads(kept))


def test_no_schema_is_left_over() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(map(file_name, MESSAGES))


def test_the_exported_schema_accepts_what_the_model_makes() -> None:
    schema = json.loads((FOLDER / "job.json").read_text(encoding="utf-8"))
    jsonschema.validate(Job(prompt="hi").model_dump(mode="json", exclude_none=True), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"kind": "job", "prompt": "hi", "max_tokens": 0}, schema)


def parts() -> list[type[BaseModel]]:
    """Every model of the contract, messages and their parts."""
    found: list[type[BaseModel]] = [Message]
    for model in found:
        found.extend(model.__subclasses__())
    part = Message.__mro__[1]
    assert issubclass(part, BaseModel)
    return [*found[1:], *(model for model in part.__subclasses__() if model is not Message)]


@pytest.mark.parametrize("model", parts(), ids=lambda model: model.__name__)
def test_no_model_shows_values_in_its_errors(model: type[BaseModel]) -> None:
    assert model.model_config.get("hide_input_in_errors") is True
    assert model.model_config.get("frozen") is True
    assert model.model_config.get("extra") == "forbid"


@pytest.mark.parametrize("name", list(Job.model_fields))
def test_each_field_of_a_job_is_described(name: str) -> None:
    if name not in ("kind",):
        assert Job.model_fields[name].description


def test_an_address_is_read_back_from_its_subject() -> None:
    address = JobAddress("eu", PriorityClass.P3, "acme", new_job_id())
    assert address.subject == f"jobs.eu.p3.acme.{address.job}"
    assert JobAddress.parse(address.subject) == address


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "jobs",
        "jobs.eu.p0.acme",
        "jobs.eu.p9.acme.0198c0de-0000-7000-8000-000000000000",
        "jobs.EU.p0.acme.0198c0de-0000-7000-8000-000000000000",
        "jobs.eu.p0.*.0198c0de-0000-7000-8000-000000000000",
        "jobs.eu.p0.acme.canary",
        "jobs.eu.p0.acme.0198c0de-0000-4000-8000-000000000000",
        "works.eu.p0.acme.0198c0de-0000-7000-8000-000000000000",
    ],
)
def test_a_bad_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        JobAddress.parse(subject)
    assert "canary" not in str(caught.value)


def test_names_on_the_queue() -> None:
    assert subjects.jobs_of("eu", PriorityClass.P0) == "jobs.eu.p0.>"
    assert subjects.consumer("us", PriorityClass.P4) == "us-p4"
    assert subjects.reply("acme", "j") == "reply.acme.j"
    assert subjects.result("acme", "j") == "result.acme.j"
    assert subjects.cancel("acme", "j") == "ctl.cancel.acme.j"
    assert subjects.end_conversation("acme", "c-1") == "ctl.end.acme.c-1"
    assert subjects.resend("w1") == "ctl.w1.resend"
    assert subjects.offer("eu", "w1") == "offer.eu.w1"
    assert subjects.bell("eu") == "bell.eu.*"
    assert subjects.heartbeat("eu", "w1") == "hb.eu.w1"
    assert subjects.usage("eu", "acme", "j") == "usage.eu.acme.j"


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_an_id_is_a_uuid_of_version_7(unix_ms: int, random_bits: int) -> None:
    made = uuid.UUID(job_id_from(unix_ms, random_bits))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == unix_ms
    assert (made.int >> 64 & 0xFFF) << 62 | made.int & (1 << 62) - 1 == random_bits


def test_ids_sort_by_time() -> None:
    assert job_id_from(1, 2**74 - 1) < job_id_from(2, 0)


def test_evolve_checks_what_it_changes() -> None:
    job = Job(prompt="hi")
    assert job.evolve(tenant="acme").tenant == "acme"
    with pytest.raises(ValueError, match="tenant"):
        job.evolve(tenant="not a name")
