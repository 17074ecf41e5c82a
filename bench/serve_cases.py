"""What is asked of a server, and the figures that come of it. Knows no engine and no queue.

Each case asks of its own: no prompt of one was seen in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from bench.arrivals import TRIAGE, Kind, poisson
from bench.floors import Floors
from bench.gpu_timing import Figure
from bench.serve_load import Answered, Asked, Prompts, Server, job_of
from sparkle.schemas.job import Job

ROUNDS = 3
WARM_ANSWER_TOKENS = 24
SHORT_ANSWER_TOKENS = 8
QUICK_SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """How long prompts and answers are; the defaults are those of the analysis of a case in a SOAR system."""

    report_tokens: int = 33_000
    answer_tokens: int = 1000
    reports: int = 8
    follow_up_tokens: int = 200
    document_tokens: int = 100_000
    documents: int = 2
    question: Kind = TRIAGE
    questions_per_s: float = 16.0
    questions_for_s: float = 10.0

    @property
    def report(self) -> str:
        """The report's length, as rows call it."""
        tokens = self.report_tokens
        return f"{tokens // 1000}k" if tokens >= 1000 else str(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A server, what it is asked, and what its machine could do at best."""

    server: Server
    prompts: Prompts
    shapes: Shapes
    floors: Floors | None
    """None where the machine is not the one that they hold for."""

    kept: float
    """Tokens that a pass writes of an answer, on average: for the floors."""

    def ask(self, job: Job) -> Answered:
        """One job alone."""
        return self.server.answer([Asked(at_s=0.0, job=job)])[0]

    def at_once(self, count: int, prompt_tokens: int, answer_tokens: int) -> list[Answered]:
        """So many new prompts that come together."""
        jobs = [self.prompts.job(prompt_tokens, answer_tokens) for _ in range(count)]
        return self.server.answer([Asked(at_s=0.0, job=job) for job in jobs])

    def prompt_floor_s(self, tokens: int, count: int = 1) -> float | None:
        """Of reading so many prompts."""
        return None if self.floors is None else count * self.floors.prompt_s(tokens)

    def answer_floor_tok_s(self, sequences: int) -> float | None:
        """Of writing the answers to so many reports at once: the most."""
        if self.floors is None:
            return None
        return sequences * self.kept / self.floors.pass_s(sequences, self.shapes.report_tokens)

    def reports_floor_s(self) -> float | None:
        """Of reading all reports and then writing all answers."""
        count, rate_tok_s = self.shapes.reports, self.answer_floor_tok_s(self.shapes.reports)
        read_s = self.prompt_floor_s(self.shapes.report_tokens, count)
        if read_s is None or rate_tok_s is None:
            return None
        return read_s + count * self.shapes.answer_tokens / rate_tok_s


def warm(bench: Bench) -> float:
    """Kernels are compiled and libraries choose theirs: no figure, but seconds to the very first token."""
    (first,) = bench.at_once(1, bench.shapes.report_tokens, WARM_ANSWER_TOKENS)
    bench.at_once(bench.shapes.reports, bench.shapes.question.prompt_tokens, WARM_ANSWER_TOKENS)
    return first.first_s


def alone(bench: Bench) -> Iterator[Figure]:
    """Reports that nobody has asked about before, how fast an answer is written, and one of them again."""
    shapes = bench.shapes
    lengths = (shapes.answer_tokens, *[SHORT_ANSWER_TOKENS] * (ROUNDS - 1))
    prompts = [bench.prompts.tokens(shapes.report_tokens) for _ in lengths]
    answers = [bench.ask(job_of(prompt, length)) for prompt, length in zip(prompts, lengths, strict=True)]
    times_s = [answer.first_s for answer in answers]
    yield seconds(f"ttft_cold_{shapes.report}_s", times_s, bench.prompt_floor_s(shapes.report_tokens))
    yield rate(f"answer_1x{shapes.report}_tok_s", answers[:1], bench.answer_floor_tok_s(1))
    yield from seen(bench, prompts[-1], answers[-1].tokens)


def seen(bench: Bench, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[Figure]:
    """The prompt that was answered last, once more, and questions behind its answer."""
    shapes = bench.shapes
    floor_s = None if bench.floors is None else bench.floors.pass_s(1, len(prompt))
    again = [bench.ask(job_of(prompt, SHORT_ANSWER_TOKENS)) for _ in range(ROUNDS)]
    yield seconds(f"ttft_seen_{shapes.report}_s", [one.first_s for one in again], floor_s)
    questions = [bench.prompts.tokens(shapes.follow_up_tokens) for _ in range(ROUNDS)]
    followed = [
        bench.ask(job_of([*prompt, *answer, *question], SHORT_ANSWER_TOKENS)) for question in questions
    ]
    yield seconds(f"ttft_follow_up_{shapes.report}_s", [one.first_s for one in followed], floor_s)
    yield count(f"cached_of_seen_{shapes.report}", [one.cached_tokens for one in again])
    yield count(f"cached_of_follow_up_{shapes.report}", [one.cached_tokens for one in followed])


def several(bench: Bench) -> Iterator[Figure]:
    """Several new reports at once, with their whole answers."""
    shapes = bench.shapes
    answers = bench.at_once(shapes.reports, shapes.report_tokens, shapes.answer_tokens)
    name = f"{shapes.reports}x{shapes.report}"
    floor_s = bench.prompt_floor_s(shapes.report_tokens, shapes.reports)
    yield seconds(f"ttft_{name}_last_s", [max(one.first_s for one in answers)], floor_s)
    yield seconds(
        f"batch_{name}_{shapes.answer_tokens}_s",
        [max(one.last_s for one in answers)],
        bench.reports_floor_s(),
    )
    yield rate(f"answer_{name}_tok_s", answers, bench.answer_floor_tok_s(shapes.reports))
    yield seconds(f"gap_{name}_s", [one.longest_gap_s for one in answers], None, of=max)


def mixed(bench: Bench) -> Iterator[Figure]:
    """Short questions by chance beside long documents that came at once."""
    shapes = bench.shapes
    documents = [
        Asked(at_s=0.0, job=bench.prompts.job(shapes.document_tokens, shapes.answer_tokens))
        for _ in range(shapes.documents)
    ]
    arrivals = poisson(shapes.question, per_s=shapes.questions_per_s, until_s=shapes.questions_for_s, seed=1)
    questions = [
        Asked(at_s=one.at_s, job=bench.prompts.job(one.prompt_tokens, one.answer_tokens)) for one in arrivals
    ]
    answers = bench.server.answer([*documents, *questions])
    long, short = answers[: shapes.documents], answers[shapes.documents :]
    floor_s = bench.prompt_floor_s(shapes.question.prompt_tokens)
    first_s = sorted(one.first_s for one in short)
    yield spread("mixed_short_ttft_p95_s", first_s, QUICK_SHARE, floor_s)
    yield spread("mixed_short_ttft_p50_s", first_s, 0.5, floor_s)
    yield spread("mixed_short_total_p95_s", sorted(one.last_s for one in short), QUICK_SHARE, None)
    floor_s = bench.prompt_floor_s(shapes.document_tokens, shapes.documents)
    yield seconds("mixed_long_ttft_last_s", [max(one.first_s for one in long)], floor_s)
    yield seconds("mixed_longest_gap_s", [one.longest_gap_s for one in answers], None, of=max)


CASES: Mapping[str, Callable[[Bench], Iterator[Figure]]] = MappingProxyType(
    {"alone": alone, "mixed": mixed, "several": several}
)


def seconds(
    case: str,
    times_s: Sequence[float],
    floor_s: float | None,
    *,
    of: Callable[[Sequence[float]], float] = median,
) -> Figure:
    """The median of the rounds, or what `of` makes of them, and their bounds."""
    bounds = (min(times_s), max(times_s))
    return Figure(case=case, value=of(times_s), unit="s", floor=floor_s, spread=bounds)


def rate(case: str, answers: Sequence[Answered], floor_tok_s: float | None) -> Figure:
    """Tokens a second from the moment on when all have their first: nothing is read beside them then.

    Other engines tell this rate too. 0 where no answer has a second token.
    """
    began_s = max(one.first_s for one in answers)
    left_s = [time_s for one in answers for time_s in one.times_s if time_s > began_s]
    value = len(left_s) / (max(left_s) - began_s) if left_s else 0.0
    return Figure(case=case, value=value, unit="tok/s", floor=floor_tok_s, spread=(value, value))


def spread(case: str, ordered_s: Sequence[float], share: float, floor_s: float | None) -> Figure:
    """The time within which so many of all are; the bounds are those of all."""
    value = ordered_s[min(len(ordered_s) - 1, int(share * len(ordered_s)))]
    return Figure(case=case, value=value, unit="s", floor=floor_s, spread=(ordered_s[0], ordered_s[-1]))


def count(case: str, tokens: Sequence[int]) -> Figure:
    """Of the rounds' prompts, tokens that were not read again."""
    bounds = (float(min(tokens)), float(max(tokens)))
    return Figure(case=case, value=median(tokens), unit="tokens", floor=None, spread=bounds)
