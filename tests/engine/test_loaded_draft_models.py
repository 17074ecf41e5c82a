"""The setting draft_model: loaded beside the model in both forms, planned for, or refused in one sentence."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
import torch

from sparkle.engine.assemble import assemble
from sparkle.engine.draft_models import BlockModel, OwnHead, chosen_draft_model
from sparkle.engine.frames import Delta, Finished
from sparkle.engine.loaded_gpu import LoadedGpu, needs_of
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import NO_DRAFT_MODEL, OWN_HEAD, Device, EngineSettings, default_model
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import CheckpointError, ConfigError, SparkleError
from sparkle.model.config import read_config
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import fp8_bytes, load_fp8_dflash_weights
from sparkle.model.fp8_weights import tensor_bytes
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import engine_around, max_pages
from tests.engine.draft_models import Recording
from tests.model.checkpoint_files import read_fields, write_fields
from tests.model.driver import CPU

SETTINGS = EngineSettings(
    draft_tokens=0,
    device=Device.CPU,
    slots=2,
    pass_tokens=64,
    kv_tokens=1024,
    max_context_tokens=100,
    threads=1,
)
JOB = Job(prompt_tokens=list(range(40, 70)), max_tokens=12, sampling=Sampling(temperature=0.0))


def answer(directory: Path, settings: EngineSettings) -> tuple[list[int], dict[str, list[int]]]:
    """The job's tokens and its drafts."""
    engine = assemble(directory, settings).engine
    engine.submit(JOB, JOB.prompt_tokens or [])
    frames = [frame for _ in range(20) if engine.has_work for frame in engine.step()]
    (finished,) = [frame for frame in frames if isinstance(frame, Finished)]
    return [token for frame in frames if isinstance(frame, Delta) for token in frame.tokens], finished.drafts


def drafting(draft_model: str, tokens: int = 3) -> EngineSettings:
    return dataclasses.replace(SETTINGS, draft_tokens=tokens, draft_model=draft_model)


def test_on_the_cpu_either_guesses_and_the_answer_stays() -> None:
    plain, none = answer(default_model(), SETTINGS)
    assert none == {}
    for setting, name in ((OWN_HEAD, "mtp"), (str(bundled_draft_model()), "dflash2")):
        tokens, drafts = answer(default_model(), drafting(setting))
        assert tokens == plain
        assert drafts[name][0] > 0
    # nothing is loaded, and so nothing can be missing, where nothing is drafted
    assert answer(default_model(), drafting("/nowhere", 0)) == (plain, {})


@pytest.mark.parametrize("device", [Device.CPU, Device.CUDA])
def test_left_out_it_is_the_own_head(device: Device) -> None:
    config, settings = read_config(default_model()), EngineSettings()
    assert isinstance(chosen_draft_model(settings.sizes(device), config), OwnHead)
    headless = dataclasses.replace(config, has_mtp=False)
    assert chosen_draft_model(settings.sizes(device), headless) is None
    off = dataclasses.replace(settings, draft_model=NO_DRAFT_MODEL)
    assert chosen_draft_model(off.sizes(device), config) is None


def changed(directory: Path, **fields: object) -> Path:
    """The bundled draft model with other fields in its config.json."""
    shutil.copytree(bundled_draft_model(), directory)
    config = read_fields(directory / "config.json")
    draft = {name: fields.pop(name) for name in config["dflash_config"].keys() & fields.keys()}
    write_fields(
        directory / "config.json", {**config, **fields, "dflash_config": {**config["dflash_config"], **draft}}
    )
    return directory


def test_one_that_chooses_among_more_tokens_than_it_guesses_is_refused(tmp_path: Path) -> None:
    directory = changed(tmp_path / "draft", selector_top_k=1025)
    settings = dataclasses.replace(drafting(str(directory)), draft_vocab_size=1024)
    told = f"draft_vocab_size is 1024 but must be at least selector_top_k of draft_model {directory}, 1025;"
    with pytest.raises(ConfigError, match=told):
        assemble(default_model(), settings)
    with pytest.raises(ConfigError, match=told):
        loaded(default_model(), str(directory))
    # as many are all there are to choose among
    plain, _ = answer(default_model(), SETTINGS)
    settings = dataclasses.replace(settings, draft_vocab_size=1025)
    tokens, drafts = answer(default_model(), settings)
    assert tokens == plain
    assert drafts["dflash2"][0] > 0


def test_rings_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    directory = changed(tmp_path / "draft", sliding_window=2**20)
    settings = dataclasses.replace(drafting(str(directory)), slots=1000, pass_tokens=1001)
    with pytest.raises(ConfigError, match=r"no memory for 1008 slots with .*draft, whose sliding_window is"):
        assemble(default_model(), settings)


def loaded(directory: Path, draft_model: str) -> LoadedGpu:
    sizes = EngineSettings(
        slots=2,
        pass_tokens=40,
        kv_tokens=2000,
        draft_tokens=3,
        draft_model=draft_model,
        draft_vocab_size=1024,
    ).sizes(Device.CUDA)
    config = read_config(directory)
    return LoadedGpu(directory, config, sizes, Stopwatch(), device=CPU, name="a GPU", free_bytes=10**10)


def test_in_fp8_either_guesses_among_the_frequent_tokens_alone() -> None:
    config, tokenizer = read_config(default_model()), Tokenizer.load(default_model())
    answers: list[list[int]] = []
    for setting in (NO_DRAFT_MODEL, OWN_HEAD, str(bundled_draft_model())):
        made = loaded(default_model(), setting)
        runner = made.runner(Sampler(tokenizer.vocab_size), max_pages=max_pages(config, made.sizes))
        record = Recording(runner)
        built = engine_around(record, config, tokenizer, made.sizes)
        answers.append(built.run(JOB.evolve(max_tokens=6))[0].tokens)
        guesses = [token for asked in record.asked for token in asked.guessed]
        assert bool(guesses) == (setting != NO_DRAFT_MODEL)
        assert all(0 <= token < 1024 for token in guesses)
    assert answers[0] == answers[1] == answers[2]


def test_the_plan_counts_the_draft_model() -> None:
    config = read_config(default_model())
    plain = loaded(default_model(), NO_DRAFT_MODEL).plan.needs
    for setting, draft in (
        (OWN_HEAD, OwnHead(config, 5000)),
        (str(bundled_draft_model()), BlockModel(bundled_draft_model(), config, 5000)),
    ):
        made, extra = loaded(default_model(), setting), draft.needs()
        needs = made.plan.needs
        assert needs == needs_of(config, dataclasses.replace(made.sizes), extra)
        assert needs.weights_bytes - plain.weights_bytes == extra.weights_bytes
        assert needs.slot_bytes - plain.slot_bytes == extra.slot_bytes
        # the graphs with guesses keep their logits, and all of them what is followed
        assert (
            needs.workspace_bytes - plain.workspace_bytes > 4 * config.vocab_size * (4 + 8) + extra.slot_bytes
        )
        runner = made.runner(Sampler(100), max_pages=4)
        assert runner.draft_model is not None
        # with guesses a pass takes longer, and is timed apart
        assert {(bucket.width, bucket.guesses) for bucket in runner.pass_ms} == {
            (1, False),
            (4, False),
            (4, True),
        }


def test_what_the_draft_models_take_is_what_they_allocate() -> None:
    config = read_dflash_config(bundled_draft_model(), read_config(default_model()))
    weights = load_fp8_dflash_weights(bundled_draft_model(), config, CPU)
    copied = sum(tensor_bytes(layer.qkv.rows(config.query_size, 1 << 20)) for layer in weights.layers)
    assert fp8_bytes(config) == pytest.approx(tensor_bytes(weights) + copied, rel=1e-3)
    rings = DFlashCache(config, num_slots=4, device=CPU, dtype=torch.bfloat16)
    needs = BlockModel(bundled_draft_model(), read_config(default_model()), 5000).needs()
    assert 5 * needs.slot_bytes == rings.bytes


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(default_model(), directory)
    config = read_fields(directory / "config.json")
    config["text_config"]["mtp_num_hidden_layers"] = 0
    write_fields(directory / "config.json", config)
    with pytest.raises(ConfigError, match="draft_model is mtp but the model has no draft head; name the dir"):
        assemble(directory, drafting(OWN_HEAD))


@pytest.mark.parametrize("form", ["float32", "FP8"])
def test_a_directory_that_is_no_draft_model_of_this_one_is_refused(tmp_path: Path, form: str) -> None:
    def load(directory: Path) -> None:
        if form == "FP8":
            loaded(default_model(), str(directory))
        else:
            assemble(default_model(), drafting(str(directory)))

    def refused(directory: Path, kind: type[SparkleError], match: str) -> None:
        with pytest.raises(kind, match=f"^draft_model {directory}: {match}"):
            load(directory)

    with pytest.raises(
        ConfigError, match="draft_model is mpt but must be mtp, none or the directory of a DFlash2"
    ):
        load(Path("mpt"))
    other = tmp_path / "other"
    shutil.copytree(bundled_draft_model(), other)
    config = read_fields(other / "config.json")
    write_fields(other / "config.json", {**config, "vocab_size": 99_999})
    refused(other, CheckpointError, "vocab_size is 99999 but the model it drafts for has")
    write_fields(other / "config.json", {**config, "intermediate_size": 512})
    refused(other, CheckpointError, "layers.0.mlp.*shape")
    (other / "config.json").unlink()
    os.mkfifo(other / "config.json")
    refused(other, CheckpointError, "config.json cannot be read: it is no file")
    (other / "config.json").unlink()
    (other / "model.safetensors").unlink()
    write_fields(other / "config.json", config)
    refused(other, CheckpointError, ".*safetensors")
