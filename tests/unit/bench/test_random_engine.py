"""Drafts that are right as often as is given, and what stands in for a checkpoint's text files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from bench.random_engine import (
    GivenCounts,
    GivenDrafts,
    RandomModel,
    served_shape,
    told,
    write_text_files,
)
from bench.serve_load import Prompts
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.frames import Accepted, Delta
from sparkle.engine.plan import TO_GUESS, Drawn, PassPlan, PassResult, Span
from sparkle.engine.settings import OWN_HEAD, EngineSettings
from sparkle.model.config import LayerType, read_config
from sparkle.model.shapes import shape_tiny
from sparkle.text.tokenizer import Tokenizer

LAYERS = (LayerType.LINEAR, LayerType.FULL)


def span(request: str, draft_tokens: int) -> Span:
    draft = (TO_GUESS,) * draft_tokens
    return Span(
        request=request, slot=0, start=9, tokens=(5, *draft), pages=(0,), draws=True, fresh=False, draft=draft
    )


def test_given_counts_have_the_mean_and_no_more_tokens_than_rows() -> None:
    counts = GivenCounts(3.0, width=4, seed=1)
    found = [counts(span("a", 3)) for _ in range(3000)]
    # three standard deviations of the mean
    assert mean(found) == pytest.approx(3.0, abs=0.05)
    assert set(found) == {1, 2, 3, 4}
    assert {counts(span("a", 1)) for _ in range(100)} == {1, 2}
    assert {GivenCounts(4.0, width=4, seed=1)(span("a", 3)) for _ in range(20)} == {4}


def test_a_mean_beyond_the_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mean is 4\.5 but must be 1 to 4"):
        GivenCounts(4.5, width=4, seed=1)


def test_what_is_kept_passes_for_guessed() -> None:
    assert told([7, 8, 9], 3) == (7, 8, -1)
    assert told([7], 3) == (-1, -1, -1)
    assert told([7, 8, 9, 4], 3) == (7, 8, 9)
    assert told([], 2) == (-1, -1)


class Drawing:
    """A runner that draws so many tokens of a request."""

    device = torch.device("cpu")
    draft_model = "mtp"
    pass_ms: Mapping[Bucket, float] = {Bucket(1, 4): 2.0}

    def __init__(self, tokens: Mapping[str, list[int]]) -> None:
        self._tokens = tokens

    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        del states
        drawn = [
            Drawn(request=one.request, token=token)
            for one in plan.spans
            for token in self._tokens[one.request]
        ]
        return PassResult(drawn=tuple(drawn), guessed={"a": (1, 1, 1)})

    def forget(self) -> None:
        raise NotImplementedError


def test_the_engine_learns_what_was_given() -> None:
    runner = GivenDrafts(Drawing({"a": [7, 8], "b": [3]}))
    assert (runner.device.type, runner.draft_model, runner.pass_ms) == ("cpu", "mtp", {Bucket(1, 4): 2.0})
    result = runner.run(PassPlan(spans=(span("a", 3), span("b", 0))), {})
    assert result.guessed == {"a": (7, -1, -1)}
    assert [one.token for one in result.drawn] == [7, 8, 3]


def test_the_vocabulary_is_the_models_but_for_the_end_token(tmp_path: Path) -> None:
    config = replace(served_shape(), vocab_size=9000, end_tokens=(8999,))
    write_text_files(config, tmp_path)
    assert Tokenizer.load(tmp_path).vocab_size == 8999
    assert read_config(tmp_path).end_tokens == (8999,)
    assert served_shape().end_tokens == (248_319,)


def test_passes_of_an_engine_keep_what_was_given() -> None:
    config = replace(shape_tiny(), vocab_size=8320, end_tokens=(8319,), layer_types=LAYERS, has_mtp=True)
    model = RandomModel(config, torch.device("cpu"))
    settings = EngineSettings(
        slots=2, pass_tokens=64, kv_tokens=1024, draft_tokens=3, draft_model=OWN_HEAD, threads=1
    )
    job = Prompts(8000, seed=1).job(20, 80)
    tokens_of: dict[float | None, float] = {}
    for kept in (4.0, None):
        engine, passes = model.assembly(settings, kept=kept).engine, 0
        assert isinstance(engine.submit(job, job.prompt_tokens or []), Accepted)
        tokens: list[int] = []
        while len(tokens) < 80:
            tokens += [token for frame in engine.step() if isinstance(frame, Delta) for token in frame.tokens]
            passes += 1
        tokens_of[kept] = len(tokens) / passes
    # all of four, but for passes in which other widths are tried; of random weights hardly any guess is right
    assert tokens_of[4.0] > 2.5
    assert tokens_of[None] < 1.5
