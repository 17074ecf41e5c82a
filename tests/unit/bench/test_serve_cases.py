"""Each case's figures, of a server whose times are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bench.arrivals import Kind
from bench.floors import Floors
from bench.gpu_timing import Figure
from bench.serve_cases import CASES, Bench, Shapes, rate, warm
from bench.serve_load import Answered, Asked, Prompts
from sparkle.model.shapes import shape_27b

SHAPES = Shapes(
    report_tokens=2000,
    answer_tokens=5,
    reports=4,
    follow_up_tokens=7,
    document_tokens=9000,
    documents=2,
    question=Kind(30, 4),
    questions_per_s=50.0,
    questions_for_s=2.0,
)
READ_TOKENS_PER_S, TOKEN_S = 1000.0, 0.25


@dataclass
class Known:
    """Reads what it has not seen, prompts of one load one after another, then writes all answers at once."""

    loads: list[Sequence[Asked]] = field(default_factory=list[Sequence[Asked]])
    seen: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def answer(self, load: Sequence[Asked]) -> list[Answered]:
        self.loads.append(load)
        answers, read_s = list[Answered](), 0.0
        for asked in load:
            prompt = tuple(asked.job.prompt_tokens or ())
            known = max((len(one) for one in self.seen if prompt[: len(one)] == one), default=0)
            read_s += (len(prompt) - known) / READ_TOKENS_PER_S
            answered = Answered(cached_tokens=known)
            for place in range(asked.job.max_tokens):
                answered.add([place], read_s + place * TOKEN_S)
            self.seen += [prompt, (*prompt, *answered.tokens)]
            answers.append(answered)
        return answers


def figures(case: str, server: Known | None = None, floors: Floors | None = None) -> dict[str, Figure]:
    bench = Bench(
        server=server or Known(), prompts=Prompts(1000, seed=1), shapes=SHAPES, floors=floors, kept=2.0
    )
    return {figure.case: figure for figure in CASES[case](bench)}


def values(case: str) -> dict[str, float]:
    return {name: round(figure.value, 6) for name, figure in figures(case).items()}


def test_alone() -> None:
    # the last prompt and the 8 tokens of its answer are known: 7 are left of a follow-up
    assert values("alone") == {
        "ttft_cold_2k_s": 2.0,
        "answer_1x2k_tok_s": 4.0,
        "ttft_seen_2k_s": 0.0,
        "ttft_follow_up_2k_s": 0.007,
        "cached_of_seen_2k": 2000,
        "cached_of_follow_up_2k": 2008,
    }


def test_several() -> None:
    # the last is read after 8 s, when the others have ended
    assert values("several") == {
        "ttft_4x2k_last_s": 8.0,
        "batch_4x2k_5_s": 9.0,
        "answer_4x2k_tok_s": 4.0,
        "gap_4x2k_s": 0.25,
    }


def test_mixed() -> None:
    server = Known()
    found = figures("mixed", server)
    ((*documents, first, last),) = ([*load[:3], load[-1]] for load in server.loads)
    assert [len(asked.job.prompt_tokens or ()) for asked in documents] == [9000, 9000]
    assert 60 < len(server.loads[0]) < 140
    assert 0 < first.at_s < last.at_s < 2
    # questions wait in line: 18 s of documents are in front of the first, nearly all in front of the last
    questions = server.loads[0][2:]
    read_s, waited = 18.0, list[float]()
    for asked in questions:
        read_s += len(asked.job.prompt_tokens or ()) / READ_TOKENS_PER_S
        waited.append(read_s)
    assert found["mixed_short_ttft_p95_s"].value == pytest.approx(waited[int(0.95 * len(waited))])
    assert found["mixed_short_ttft_p50_s"].value == pytest.approx(waited[len(waited) // 2])
    assert found["mixed_short_ttft_p95_s"].spread == pytest.approx((waited[0], waited[-1]))
    assert found["mixed_long_ttft_last_s"].value == 18.0
    assert found["mixed_longest_gap_s"].value == 0.25


def test_no_prompt_is_seen_in_another_case() -> None:
    server = Known()
    bench = Bench(server=server, prompts=Prompts(1000, seed=1), shapes=SHAPES, floors=None, kept=1.0)
    assert warm(bench) == 2.0
    for case in CASES.values():
        list(case(bench))
    heads = [tuple(asked.job.prompt_tokens or ())[:8] for load in server.loads for asked in load]
    # one report is asked about seven times
    assert len(heads) - len(set(heads)) == 6


def test_floors_are_of_the_whole_load() -> None:
    floors = Floors(shape_27b(), 26 * 10**9)
    found = figures("several", floors=floors)
    read_s, pass_s = 4 * floors.prompt_s(2000), floors.pass_s(4, 2000)
    assert found["ttft_4x2k_last_s"].floor == read_s
    # 5 tokens of each by passes that write two
    assert found["batch_4x2k_5_s"].floor == pytest.approx(read_s + 2.5 * pass_s)
    assert found["answer_4x2k_tok_s"].floor == pytest.approx(8 / pass_s)
    assert found["gap_4x2k_s"].floor is None


def test_the_rate_counts_from_the_last_first_token() -> None:
    early, late = Answered(), Answered()
    early.add([1, 2], 1.0)
    early.add([3, 4, 5], 3.0)
    late.add([1], 2.0)
    late.add([2, 3], 4.0)
    assert rate("", [early, late], None).value == 2.5
    assert rate("", [early], None).value == 1.5
    assert early.longest_gap_s == 2.0


def test_an_answer_of_one_token_has_no_rate() -> None:
    only = Answered()
    only.add([1], 1.0)
    assert rate("", [only], None).value == 0.0
    assert only.longest_gap_s == 0.0


def test_the_floors_of_the_published_shapes() -> None:
    """As rows of bench/results have them: 25.6 GB a pass, 33,000 tokens in a second, attention among it."""
    config = shape_27b()
    head = config.vocab_size * config.hidden_size
    floors = Floors(config, 24_350_000_000 + head)
    assert floors.pass_s(1, 33_000) == pytest.approx(5.88e-3, rel=2e-3)
    assert floors.prompt_s(33_000) == pytest.approx(1.030, rel=2e-3)
    # one token is read no faster than a pass
    assert floors.prompt_s(1) == floors.pass_s(1, 0)
