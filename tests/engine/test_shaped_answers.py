"""The engine with shapes: what it writes is valid, whatever drafts for it and whoever runs beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from random import Random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.drafting.lookup import PromptLookup
from sparkle.drafting.proposer import Proposer
from sparkle.engine.frames import Accepted, Failed
from sparkle.engine.settings import EngineSettings
from sparkle.errors import FailureCode
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job, Sampling, Thinking, Turn
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Answer, Bundle, bundle
from tests.engine.proposers import adversary, liar, lookup, oracle
from tests.engine.schema_trees import SCHEMA_TREES
from tests.engine.scripted_model import ScriptedModel
from tests.engine.small_model import config_for, small_decoder
from tests.engine.test_preemption import LONG, SHORT, Clock
from tests.shapes import PERSON, lost_shape, of_lark, of_schema, vocabulary

DRAFTING = EngineSettings(
    slots=3, pass_tokens=64, page_tokens=8, kv_tokens=2048, threads=1, draft_tokens=15, cached_slots=2
)
PLAIN = EngineSettings(slots=3, pass_tokens=64, page_tokens=8, kv_tokens=2048, threads=1, draft_tokens=0)
REPORT: dict[str, object] = {
    "type": "object",
    "properties": {
        "severity": {"enum": ["low", "medium", "high"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["severity", "score"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, object], ...] = (PERSON, REPORT)


class Rig:
    """Shapes over the tokens of one tokenizer, and jobs that are kept to them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.config = config_for(tokenizer)
        self.tokens = vocabulary(self.config.vocab_size, self.config.end_tokens)
        self.think = tokenizer.added_tokens["</think>"]
        self.lead_in = tuple(tokenizer.encode("\n\n"))

    def shape(self, schema: dict[str, object], *, thinks: bool = False, complete: bool = False) -> Shape:
        return of_schema(
            schema,
            self.tokens,
            begins_after=self.think if thinks else None,
            lead_in=self.lead_in if thinks else (),
            complete=complete,
        )

    def jobs(self, count: int, *, seed: int = 0, max_tokens: int = 120) -> list[Job]:
        return [
            Job(
                prompt_tokens=[10 + place, 11, 12 + seed % 7, 13] * (1 + place % 3),
                max_tokens=max_tokens,
                sampling=Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=100 * seed + place),
            )
            for place in range(count)
        ]


@pytest.fixture(scope="module")
def rig(tokenizer: Tokenizer) -> Rig:
    return Rig(tokenizer)


def run(built: Bundle, jobs: Sequence[Job], shapes: Mapping[str, Shape]) -> list[Answer]:
    answers = built.run(*jobs, shapes=shapes)
    assert not built.engine.has_work
    return answers


def written_alone(rig: Rig, jobs: Sequence[Job], shapes: Mapping[str, Shape]) -> dict[str, list[int]]:
    """Each answer of an engine that runs nothing else, and drafts nothing."""
    return {
        job.id: run(bundle(small_decoder(rig.tokenizer), rig.tokenizer, PLAIN), [job], shapes)[0].tokens
        for job in jobs
    }


def test_answers_with_and_without_shapes_in_the_same_passes_are_those_of_each_alone(rig: Rig) -> None:
    jobs = rig.jobs(5, seed=1, max_tokens=60)
    shapes = {
        job.id: rig.shape(schema) for job, schema in zip(jobs[::2], (PERSON, REPORT, PERSON), strict=True)
    }
    alone = written_alone(rig, jobs, shapes)
    for make in (oracle, adversary, liar, lookup):
        proposer = make(alone, rig.tokenizer.vocab_size)
        answers = run(bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING, proposer), jobs, shapes)
        assert {job.id: answer.tokens for job, answer in zip(jobs, answers, strict=True)} == alone
        for job, answer in zip(jobs, answers, strict=True):
            if job.id in shapes:
                ended = answer.finished.finish_reason is FinishReason.STOP
                assert ended == (answer.tokens[-1] in rig.config.end_tokens)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), complete=st.booleans())
def test_what_ends_is_valid_and_what_has_to_be_complete_ends(
    tokenizer: Tokenizer, seed: int, complete: bool
) -> None:
    rig = Rig(tokenizer)
    jobs = rig.jobs(4, seed=seed, max_tokens=Random(seed).choice([30, 45, 90]))
    schemas = {job.id: SCHEMAS[place % 2] for place, job in enumerate(jobs)}
    shapes = {name: rig.shape(schema, complete=complete) for name, schema in schemas.items()}
    built = bundle(small_decoder(tokenizer), tokenizer, DRAFTING, lookup({}, 0))
    answers = run(built, jobs, shapes)
    for job, answer in zip(jobs, answers, strict=True):
        if answer.finished.finish_reason is FinishReason.STOP:
            jsonschema.validate(json.loads(answer.text), schemas[job.id])
        else:
            assert not complete
            assert len(answer.tokens) == job.max_tokens


def test_the_shape_begins_behind_the_thinking_wherever_it_ends(rig: Rig) -> None:
    """Thinking is a walk that ends at its 8th token; drafts go beyond it."""
    script = ScriptedModel(rig.config.vocab_size, lambda _, position: rig.think if position == 10 else 300)
    job = Job(
        messages=[Turn(role="user", content="go")],
        max_tokens=120,
        thinking=Thinking.LOW,
        sampling=Sampling(temperature=0.6, top_k=0, seed=5),
    )
    shapes = {job.id: rig.shape(REPORT, thinks=True, complete=True)}

    def answer_with(settings: EngineSettings, proposer: Proposer | None) -> Answer:
        built = bundle(script, rig.tokenizer, settings, proposer)
        assert isinstance(built.submit(job, [5, 6, 7], shape=shapes[job.id]), Accepted)
        while built.engine.has_work:
            built.step()
        return built.answers[job.id]

    plain = answer_with(PLAIN, None)
    place = plain.tokens.index(rig.think)
    assert place == 8
    assert tuple(plain.tokens[place + 1 : place + 1 + len(rig.lead_in)]) == rig.lead_in
    jsonschema.validate(json.loads(plain.text), REPORT)
    assert plain.finished.finish_reason is FinishReason.STOP
    for make in (oracle, adversary):
        drafted = answer_with(DRAFTING, make({job.id: plain.tokens}, rig.tokenizer.vocab_size))
        assert drafted.tokens == plain.tokens
        assert drafted.finished.accepted_tokens > 0


def test_what_is_forced_is_drafted_without_asking_anyone(rig: Rig) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    shape = of_lark(f'start: "{text}"', rig.tokens)
    job = rig.jobs(1)[0]
    built = bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING)
    (answer,) = run(built, [job], {job.id: shape})
    assert answer.text == text
    passes, drafted, accepted = answer.finished.drafts["forced"]
    # the first token is drawn with the prompt; each pass draws one that is no guess
    assert accepted >= len(answer.tokens) - 1 - passes
    assert drafted < 16 * passes
    assert passes <= 1 + len(answer.tokens) // 8


def test_end_tokens_come_only_where_the_shape_is_complete(rig: Rig) -> None:
    """The model wants to end at once, always."""
    end = rig.config.end_tokens[0]
    script = ScriptedModel(rig.config.vocab_size, lambda _, __: end)
    job = rig.jobs(1)[0]
    greedy = job.model_copy(update={"sampling": Sampling(temperature=0.0), "max_tokens": 200})
    built = bundle(script, rig.tokenizer, DRAFTING)
    (answer,) = run(built, [greedy], {greedy.id: of_lark("start: /[ab]{5}/ /c*/", rig.tokens)})
    assert answer.tokens[-1] == end
    assert len(answer.text) == 5
    assert set(answer.text) <= {"a", "b"}


def test_stop_strings_and_the_jobs_own_stop_tokens_cut_a_shaped_answer(rig: Rig) -> None:
    shape = of_lark('start: "one two three four"', rig.tokens)
    job = rig.jobs(1)[0]
    three = rig.tokenizer.encode(" three")[0]
    for sampling, text in (
        (Sampling(temperature=0.0, stop=[" thr"]), "one two"),
        (Sampling(temperature=0.0, stop_tokens=[three]), "one two"),
    ):
        stopping = job.model_copy(update={"sampling": sampling})
        built = bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING)
        (answer,) = run(built, [stopping], {stopping.id: shape})
        assert answer.text.startswith(text)
        assert answer.finished.finish_reason is FinishReason.STOP
        assert "four" not in answer.text


def test_a_job_that_gives_way_goes_on_in_its_shape(rig: Rig) -> None:
    items: dict[str, object] = {"type": "array", "items": {"enum": ["high", "low", 12]}, "minItems": 90}
    shapes = {job.id: rig.shape(items) for job in LONG}
    settings = dataclasses.replace(DRAFTING, slots=2, cached_slots=3)
    expected = bundle(small_decoder(rig.tokenizer), rig.tokenizer, settings).run(*LONG, shapes=shapes)
    built = bundle(small_decoder(rig.tokenizer), rig.tokenizer, settings, lookup({}, 0), Clock())
    for job in LONG:
        built.submit(job, shape=shapes[job.id])
    while min(len(built.answers.get(job.id, Answer()).tokens) for job in LONG) < 5:
        built.step()
    built.run(*SHORT)
    assert built.scheduler.preempted >= 2
    for job, one in zip(LONG, expected, strict=True):
        assert built.answers[job.id].tokens == one.tokens
        assert len(one.tokens) > 100


@pytest.mark.parametrize("known", [1, 4, 9, 20, None])
def test_an_answer_that_was_begun_elsewhere_goes_on_in_its_shape(rig: Rig, known: int | None) -> None:
    """Also where its thinking is not over, and where all of it was written but not told."""
    jobs = rig.jobs(2, seed=6, max_tokens=60)
    shapes = {
        jobs[0].id: rig.shape(PERSON, complete=True),
        jobs[1].id: of_lark(
            "start: /[a-z]{9}/", rig.tokens, begins_after=300, lead_in=rig.lead_in, complete=True
        ),
    }
    for job in jobs:
        (whole,) = run(bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING), [job], shapes)
        built = bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING)
        assert isinstance(built.submit(job, answered=whole.tokens[:known], shape=shapes[job.id]), Accepted)
        while built.engine.has_work:
            built.step()
        assert built.answers[job.id].tokens == whole.tokens
        assert built.answers[job.id].finished.finish_reason is whole.finished.finish_reason


def test_what_was_begun_in_another_shape_is_refused(rig: Rig) -> None:
    (job,) = rig.jobs(1)
    built = bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING)
    refused = built.submit(job, answered=rig.tokenizer.encode("no JSON"), shape=rig.shape(PERSON))
    assert isinstance(refused, Failed)
    assert "no JSON" not in refused.message
    # nothing of it is left: it can come again
    assert isinstance(built.submit(job, shape=rig.shape(PERSON)), Accepted)


@settings(max_examples=12, deadline=None)
@given(schemas=st.lists(SCHEMA_TREES, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_answers_in_any_shapes_are_valid_beside_each_other_whatever_is_drafted(
    tokenizer: Tokenizer, schemas: list[dict[str, object]], seed: int
) -> None:
    """All that is allowed is as likely, but for one token of no use; drafts are copies and noise."""
    rig = Rig(tokenizer)
    script = ScriptedModel(rig.config.vocab_size, lambda token, position: (token * 31 + position) % 8000)
    jobs = rig.jobs(len(schemas), seed=seed, max_tokens=150)
    shapes = {job.id: rig.shape(schema, complete=True) for job, schema in zip(jobs, schemas, strict=True)}
    noise = {job.id: [Random(seed + place).randrange(8000) for place in range(200)] for job in jobs}
    built = bundle(script, tokenizer, DRAFTING, Noisy(noise))
    for schema, answer in zip(schemas, run(built, jobs, shapes), strict=True):
        assert answer.finished.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(answer.text), schema)


class Noisy(PromptLookup):
    """Copies, and where there is none to make random tokens."""

    def __init__(self, noise: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self._noise = noise

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        return super().propose(request, count, behind) or tuple(self._noise[request][:count])


def test_a_lost_grammar_ends_its_own_job_with_a_typed_failure(rig: Rig) -> None:
    lost, sound = rig.jobs(2, seed=4)
    shapes = {lost.id: lost_shape(rig.tokens), sound.id: rig.shape(REPORT, complete=True)}
    built = bundle(small_decoder(rig.tokenizer), rig.tokenizer, DRAFTING)
    answers = run(built, [lost, sound], shapes)
    end = answers[0].end
    assert isinstance(end, Failed)
    assert (end.code, end.retryable) == (FailureCode.ENGINE_ERROR, False)
    assert answers[0].tokens == []
    jsonschema.validate(json.loads(answers[1].text), REPORT)
