"""A checkpoint's directory becomes an engine, or a clear refusal."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from sparkle.engine.assemble import assemble
from sparkle.engine.frames import Accepted, Delta, Finished
from sparkle.engine.loaded_cpu import LoadedCpu
from sparkle.engine.settings import MOST_TOKENS, Device, EngineSettings, default_model
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import ConfigError, UnsupportedModel
from sparkle.model.config import ModelConfig
from sparkle.schemas.job import Job, Turn

SETTINGS = EngineSettings(
    device=Device.CPU, slots=2, pass_tokens=64, kv_tokens=1024, max_context_tokens=100, threads=1
)


def test_the_bundled_model_answers_a_chat(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assembly = assemble(default_model(), SETTINGS)
    assert (assembly.model, assembly.context_tokens) == ("sparkle-tiny", 100)
    assert torch.get_num_threads() == 1
    assert (assembly.sizes.slots, assembly.sizes.kv_tokens, assembly.plan.kv_tokens) == (2, 1024, 1024)
    assert list(assembly.phases_s) == ["weights_s", "cache_s", "text_s", "graphs_s"]
    job = Job(messages=[Turn(role="user", content="hello")], max_tokens=5)
    prompt = assembly.prompts.build(job)
    assert assembly.engine.submit(job, prompt) == Accepted(job=job.id, prompt_tokens=len(prompt))
    frames = [frame for _ in range(6) if assembly.engine.has_work for frame in assembly.engine.step()]
    finished = frames[-1]
    assert isinstance(finished, Finished)
    tokens = [token for frame in frames if isinstance(frame, Delta) for token in frame.tokens]
    assert len(tokens) == finished.completion_tokens


def test_the_memory_plan_is_one_line_of_bytes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assemble(default_model(), SETTINGS)
    (record,) = [record for record in caplog.records if record.message == "memory_plan"]
    plan = vars(record)
    text = json.loads((default_model() / "config.json").read_text())["text_config"]
    linear = text["layer_types"].count("linear_attention")
    # the draft head's layer is one more that keeps them
    full = len(text["layer_types"]) - linear + text["mtp_num_hidden_layers"]
    # keys and values of 1,024 tokens, and the recurrent state and three columns of ten slots, in float32
    assert plan["kv_bytes"] == 4 * 1024 * full * 2 * text["num_key_value_heads"] * text["head_dim"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    state = values * text["linear_key_head_dim"] + 3 * (2 * keys + values)
    assert plan["state_bytes"] == 4 * (2 + 8) * linear * state
    assert (plan["kv_tokens"], plan["slots"], plan["device"]) == (1024, 2, "the CPU")
    # a little over the file's parameters in float32: 10 to 20 million of them
    assert 4e7 < plan["weights_bytes"] < 8e7


def test_a_measurements_own_model_stands_in_for_the_checkpoints() -> None:
    made: list[LoadedCpu] = []

    def load(directory: Path, config: ModelConfig, settings: EngineSettings, watch: Stopwatch) -> LoadedCpu:
        made.append(LoadedCpu(directory, config, settings.sizes(Device.CPU), watch))
        return made[0]

    assembly = assemble(default_model(), SETTINGS, load=load)
    assert assembly.plan is made[0].plan
    assert list(assembly.phases_s) == ["weights_s", "cache_s", "text_s", "graphs_s"]


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(default_model(), directory)
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["vocab_size"] = 8180
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=r"tokenizer has \d+ tokens but vocab_size is 8180"):
        assemble(directory, SETTINGS)


def test_more_memory_than_there_is_is_refused_with_both_numbers() -> None:
    settings = EngineSettings(device=Device.CPU, kv_tokens=MOST_TOKENS, threads=1)
    with pytest.raises(ConfigError, match=f"kv_tokens {MOST_TOKENS}, slots 8 and cached_slots 8"):
        assemble(default_model(), settings)
