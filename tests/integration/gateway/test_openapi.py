"""Requests made of the gateway's own OpenAPI document: whatever is sent, it is not the gateway that fails."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation.modes import GenerationMode

ROOT = Path(__file__).parents[3]

ANSWERED = {200, 400, 404, 408, 409, 413, 429, 503, 504}
"""What a request can come to without a key. 504: its job was as long as it asked for, its deadline short."""

DEADLINE_S = 0.3


@contextmanager
def served() -> Generator[str]:
    """A gateway in a process of its own: a job is given up soon after it began."""
    command = (sys.executable, "-m", "tests.gateway_service", str(DEADLINE_S))
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        assert service.stdin is not None
        try:
            yield service.stdout.readline().strip()
        finally:
            service.stdin.close()


def make_requests(*, rounds: int) -> Counter[int]:
    """Some requests of every operation in each round, valid ones and others; their statuses."""
    statuses: Counter[int] = Counter()
    with served() as url, requests.Session() as session:
        document = requests.get(f"{url}/openapi.json", timeout=30).json()
        schema: Any = schemathesis.openapi.from_dict(document)
        operations: list[Any] = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) == 14
        for _ in range(rounds):
            for operation in operations:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    _try(operation.as_strategy(generation_mode=mode), url, session, statuses)
    return statuses


# of its cases the library's types say little
def _try(cases: Any, url: str, session: requests.Session, statuses: Counter[int]) -> None:
    @given(cases)
    @settings(
        max_examples=6,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    def send(case: Any) -> None:
        answer = case.call(base_url=url, session=session, timeout=30)
        statuses[answer.status_code] += 1
        assert answer.status_code in ANSWERED, (case.operation.label, answer.status_code)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error"}

    send()


def test_no_request_of_its_own_document_breaks_it(nats_binary: None) -> None:
    statuses = make_requests(rounds=1)
    # the lists of what is kept, asked without parameters, are answered in any case
    assert statuses[200] > 10
    assert statuses[400] > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_some_ten_thousand_requests_break_nothing(nats_binary: None) -> None:
    assert make_requests(rounds=60)[200] > 600
