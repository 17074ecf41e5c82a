"""Which model a request means: by what workers say, what the settings say, and whose key it is."""

from __future__ import annotations

import pytest

from sparkle.producers.gateway.access import Principal
from sparkle.producers.gateway.faults import ApiFault
from sparkle.producers.gateway.models import ServedModels
from sparkle.schemas.control import Heartbeat, WorkerState

ANYBODY = Principal("acme", "eu")


class Roster:
    """Workers that a test names."""

    def __init__(self, *models: str) -> None:
        self.models = list(models)

    def workers(self) -> list[Heartbeat]:
        return [
            Heartbeat(
                worker=f"w-{number}",
                region="eu",
                state=WorkerState.READY if model else WorkerState.STARTING,
                model=model,
                slots=1,
                running=[],
                sent_ms=0,
            )
            for number, model in enumerate(self.models)
        ]


def test_names_come_from_workers_and_settings_each_once() -> None:
    models = ServedModels(Roster("qwen", "", "qwen", "tiny"), ("always",))
    assert models.names(ANYBODY) == ["always", "qwen", "tiny"]
    assert models.names(Principal("acme", "eu", ("tiny", "gone"))) == ["tiny"]


def test_a_worker_that_is_starting_serves_nothing() -> None:
    with pytest.raises(ApiFault) as refused:
        ServedModels(Roster(""), ()).choose(None, ANYBODY)
    assert (refused.value.status, refused.value.code) == (503, "no_worker")


def test_left_out_it_is_the_keys_first_or_the_first_served() -> None:
    models = ServedModels(Roster("qwen", "tiny"), ())
    assert models.choose(None, ANYBODY) == "qwen"
    assert models.choose(None, Principal("acme", "eu", ("tiny", "qwen"))) == "tiny"


def test_one_that_is_not_served_or_not_the_keys_is_refused_by_name() -> None:
    models = ServedModels(Roster("qwen", "tiny"), ())
    for asked, principal in (("gpt-9", ANYBODY), ("qwen", Principal("acme", "eu", ("tiny",)))):
        with pytest.raises(ApiFault, match="404 model_not_found") as refused:
            models.choose(asked, principal)
        assert f"`{asked}` is not served" in refused.value.message


def test_one_whose_workers_have_gone_is_still_known() -> None:
    roster = Roster("qwen")
    models = ServedModels(roster, ())
    assert models.choose("qwen", ANYBODY) == "qwen"
    roster.models.clear()
    assert models.choose("qwen", ANYBODY) == "qwen"
    assert models.names(ANYBODY) == []
    with pytest.raises(ApiFault, match="404"):
        models.choose("qwen", Principal("acme", "eu", ("tiny",)))
