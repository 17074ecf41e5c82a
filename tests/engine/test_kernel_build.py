"""`sparkle kernels build`: what it runs, what it says, and where there is no H200."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

# triton has no types
import triton  # pyright: ignore[reportMissingTypeStubs]
from typer.testing import CliRunner

from sparkle.cli import app
from sparkle.engine import assemble as assemble_module
from sparkle.engine.assemble import assemble, keep_kernels
from sparkle.engine.engine import Engine
from sparkle.engine.frames import Frame
from sparkle.engine.kernel_build import PROMPT_TOKENS, build, summary
from sparkle.engine.loaded_gpu import PROMPT_ROWS
from sparkle.engine.settings import Device, EngineSettings, default_model
from sparkle.errors import ConfigError
from sparkle.kernels import ops
from sparkle.kernels.silu_mul_quant import silu_mul_quantise_kernel
from sparkle.schemas.job import Job
from sparkle.text.shape import Shape
from tests.kernels.ahead_of_time import compile_for_h200

SETTINGS = EngineSettings(device=Device.CPU, slots=1, pass_tokens=400, kv_tokens=2048, threads=1)
knobs = cast(Any, triton).knobs


@pytest.fixture(autouse=True)
def own_knobs() -> Iterator[None]:
    with knobs.cache.scope(), knobs.compilation.scope():
        yield


def test_prompts_of_every_kind_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []
    submit = Engine.submit

    def listen(self: Engine, job: Job, prompt: Sequence[int], *, shape: Shape | None) -> Frame:
        assert (shape is None) == (job.response_format is None)
        asked.append(job)
        return submit(self, job, prompt, shape=shape)

    monkeypatch.setattr(Engine, "submit", listen)
    assembly = assemble(default_model(), SETTINGS)
    build(assembly, default_model())
    assert not assembly.engine.has_work
    lengths = [len(job.prompt_tokens or []) for job in asked if job.response_format is None]
    # the last is longer than a pass: its later chunks have a context
    assert lengths == [length for length in (*PROMPT_TOKENS, 1500) for _ in range(2)]
    assert {job.sampling.temperature for job in asked} == {0.0, 1.0}
    assert len(asked) - len(lengths) == 3


def test_the_longest_prompts_are_read_outside_the_graphs() -> None:
    assert PROMPT_TOKENS[-1] > max(PROMPT_ROWS)


def test_a_short_context_leaves_the_long_prompts_out() -> None:
    settings = EngineSettings(device=Device.CPU, slots=1, max_context_tokens=90, threads=1)
    assembly = assemble(default_model(), settings)
    build(assembly, default_model())
    assert not assembly.engine.has_work


def test_kernels_are_kept_where_they_shall_be_and_counted(tmp_path: Path) -> None:
    ops.keep_compiled_kernels(tmp_path)
    count = ops.CompileCount()
    for _ in range(2):
        compile_a_kernel()
    assert (count.compiled, count.found, count.needed) == (1, 1, 2)
    assert list(tmp_path.rglob("*.cubin"))


def compile_a_kernel() -> None:
    compile_for_h200(
        silu_mul_quantise_kernel,
        {"p_gate_up": "*bf16", "p_values": "*fp8e4nv", "p_scales": "*fp32", "rows": "i32", "columns": "i32"},
        {"GROUPS": 8, "PDL": True},
    )


def test_the_summary_is_one_line(tmp_path: Path) -> None:
    count = ops.CompileCount()
    count.compiled, count.found = 30, 4
    told = summary(count, EngineSettings(kernel_cache=tmp_path), 12.34)
    assert told == f"34 kernels in {tmp_path}: 30 compiled, 4 had been there; 12.3 s in all"
    assert summary(count, EngineSettings(), 0.0).startswith("34 kernels in Triton's own cache: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_an_h200_it_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(app, ["kernels", "build"])
    assert result.exit_code == 2
    said = capfd.readouterr().err
    assert said.startswith("sparkle kernels build: sparkle serves on one NVIDIA H200")
    assert said.count("\n") == 1


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["kernels", "build", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == f"sparkle: model {tmp_path} is no checkpoint: it has no config.json\n"


def test_a_kernel_cache_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, reason in (("file", "File exists"), ("file/below", "Not a directory")):
        with pytest.raises(
            ConfigError, match=rf"kernel_cache .*/{place} cannot be made or written \({reason}"
        ):
            keep_kernels(tmp_path / place)


def test_an_empty_kernel_cache_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*, dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(assemble_module, "TemporaryFile", read_only)
    with pytest.raises(ConfigError, match=r"cannot be made or written \(Read-only file system\)"):
        keep_kernels(tmp_path)
    (tmp_path / "kernel").write_text("")
    keep_kernels(tmp_path)
