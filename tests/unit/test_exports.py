"""The public names, exactly, and that none of them costs a producer an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparkle
from sparkle import errors
from sparkle.producers import client, handle
from sparkle.schemas import answer, job, shape, tools

HEAVY = {"torch", "triton", "transformers", "tokenizers", "numpy"}


def test_the_public_names_are_exactly_these() -> None:
    assert sparkle.__all__ == [
        "AnswerChanged",
        "Channel",
        "ChoiceShape",
        "Chunk",
        "Client",
        "ConfigError",
        "ContractError",
        "Failure",
        "FailureCode",
        "FinishReason",
        "GrammarShape",
        "Handle",
        "Job",
        "JobFailed",
        "JsonObjectShape",
        "JsonSchemaShape",
        "MessageTooLarge",
        "NamedTool",
        "NotConnected",
        "QueueError",
        "QueueFull",
        "RegexShape",
        "Result",
        "Sampling",
        "SparkleError",
        "Thinking",
        "Tool",
        "ToolCall",
        "ToolCallDelta",
        "TopologyMissing",
        "Turn",
        "Usage",
        "connect",
    ]
    assert dir(sparkle) == sparkle.__all__


def test_every_name_is_the_one_of_its_module() -> None:
    homes = (client, handle, answer, job, shape, tools, errors)
    for name in sparkle.__all__:
        home = next(module for module in homes if hasattr(module, name))
        assert getattr(sparkle, name) is getattr(home, name), name


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'sparkle' has no attribute 'Engine'"):
        getattr(sparkle, "Engine")  # noqa: B009 - a checker knows as well that there is none


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    program = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import sparkle.producers.client",
        "import sparkle; sparkle.connect; sparkle.Job; sparkle.Sampling",
        "import sparkle.cli; sparkle.cli.app",
        "import sparkle.model.random_checkpoint, sparkle.model.shapes",
    ],
)
def test_a_producer_loads_no_engine(statement: str) -> None:
    loaded = loaded_after(statement)
    assert "sparkle" in loaded
    assert loaded & HEAVY == set()


def test_a_worker_loads_no_engine_into_its_own_process() -> None:
    loaded = loaded_after("import sparkle.workers.serve")
    assert "prometheus_client" in loaded
    assert loaded & HEAVY == set()


def test_the_bare_import_loads_nothing_of_weight() -> None:
    assert loaded_after("import sparkle") & {*HEAVY, "nats", "pydantic", "msgpack", "typer", "rich"} == set()
