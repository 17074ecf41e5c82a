"""Checkpoints through the runner of the FP8 decoder: windows and the draft model's context go along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Bundle, engine_around
from tests.engine.history_model import answer_to
from tests.engine.test_gpu_runner import END, VOCAB, Rig, config, sizes
from tests.engine.test_gpu_runner_drafts import drafting_sizes
from tests.engine.test_gpu_runner_guesses import always, sometimes

LONG = [number * 31 % VOCAB for number in range(120)]
MOST = 12


@dataclass
class Talk:
    """Jobs that begin like one another or go on from an answer, and what was not read of them."""

    built: Bundle
    said: list[list[int]] = field(default_factory=list[list[int]])
    cached: int = 0

    def ask(self, prompts: Sequence[tuple[list[int], int]]) -> None:
        """All at once; each must get its own answer."""
        jobs = [Job(prompt_tokens=prompt, max_tokens=most, sampling=GREEDY) for prompt, most in prompts]
        for job, answer in zip(jobs, self.built.run(*jobs), strict=True):
            prompt = job.prompt_tokens or []
            expected = expected_answer(prompt, job.max_tokens)
            assert answer.tokens == expected
            ended = expected[-1] == END
            assert answer.finished.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
            self.said.append([*prompt, *expected])
            self.cached += answer.finished.cached_tokens


def expected_answer(prompt: Sequence[int], most: int) -> list[int]:
    answer = answer_to(prompt, most, VOCAB)
    return answer[: answer.index(END) + 1] if END in answer else answer


ASKED = st.tuples(
    st.integers(0, 5), st.integers(1, 120), st.lists(st.integers(0, 3), max_size=20), st.integers(1, MOST)
)
"""Which earlier one it goes on from, none for 0; else how much of LONG; what is said then; tokens at most."""


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(st.lists(ASKED, min_size=1, max_size=4), min_size=2, max_size=5),
    draft_tokens=st.sampled_from([0, 3, 15]),
    page_tokens=st.sampled_from([1, 3, 8]),
    pass_tokens=st.sampled_from([20, 200]),
    guesses_well=st.booleans(),
)
def test_every_answer_is_its_own_wherever_it_goes_on_from(
    tokenizer: Tokenizer,
    rounds: list[list[tuple[int, int, list[int], int]]],
    draft_tokens: int,
    page_tokens: int,
    pass_tokens: int,
    *,
    guesses_well: bool,
) -> None:
    of = drafting_sizes(draft_tokens, slots=3, pass_tokens=pass_tokens, page_tokens=page_tokens)
    rig = Rig(of, (1, 4, 16), right=always if guesses_well else sometimes, prompt_rows=(32,))
    talk = Talk(engine_around(rig.runner, config(), tokenizer, of))
    for asked in rounds:
        prompts: list[tuple[list[int], int]] = []
        for earlier, length, then, most in asked:
            before = talk.said[-earlier] if 0 < earlier <= len(talk.said) else LONG[:length]
            prompts.append(([*before[:200], *then, 5], most))
        talk.ask(prompts)


def test_what_stays_of_a_draft_is_what_the_follow_up_goes_on_from(tokenizer: Tokenizer) -> None:
    of = drafting_sizes(15, slots=2, pass_tokens=200, page_tokens=4)
    talk = Talk(engine_around(Rig(of, (1, 16), right=always).runner, config(), tokenizer, of))
    prompt = next(
        LONG[:length] for length in range(20, 120) if END in answer_to(LONG[:length], MOST, VOCAB)[3:-3]
    )
    talk.ask([(prompt, MOST)])
    (said,) = talk.said
    assert said[-1] == END
    talk.ask([([*said, 7, 8], 3), ([*said, 9], 3)])
    assert talk.cached == 2 * (len(said) - 1)


def test_a_follow_up_may_begin_with_a_guess_or_a_long_chunk(tokenizer: Tokenizer) -> None:
    of = sizes(slots=2, pass_tokens=200, page_tokens=4)
    rig = Rig(of, (1, 4), right=always)
    talk = Talk(engine_around(rig.runner, config(), tokenizer, of))
    talk.ask([(LONG[:30], 5)])
    (said,) = talk.said
    # the window of the first one is folded in, in the checkpoint's copy alone
    talk.ask([([*said, *LONG[:40]], 3)])
    talk.ask([([*said, 1], 3)])
    assert talk.cached == 2 * (len(said) - 1)
