"""What people see: answers on pipes and terminals, figures, tables. Values, not looks."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from sparkle.producers.answer_view import (
    JsonLinesView,
    TextView,
    milliseconds,
    printable,
    tokens_per_s,
    usage_line,
)
from sparkle.producers.demo_prompts import demo_prompts, next_prompt
from sparkle.producers.demo_view import LiveView, Progress, note_chunk, note_done, note_queued, summary_table
from sparkle.producers.serving import how_to_ask
from sparkle.producers.status_table import age, status_table
from sparkle.queue.status import ClassStatus, QueueStatus
from sparkle.schemas.answer import Alternative, Channel, Chunk, FinishReason, Result, TokenLogprobs, Usage
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.tools import ToolCall

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
USAGE = Usage(prompt_tokens=12, completion_tokens=21, queue_s=0.0032, first_token_s=0.12, total_s=2.12)
RESULT = Result(
    job=JOB, attempt=1, worker="w1", text="yes", tokens=[1], finish_reason=FinishReason.STOP, usage=USAGE
)


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def chunk(text: str, channel: Channel = Channel.ANSWER) -> Chunk:
    return Chunk(
        job=JOB,
        attempt=1,
        seq=0,
        first_index=0,
        tokens=[1],
        text=text,
        text_start=0,
        channel=channel,
        worker="w1",
    )


def shown_on(out: io.StringIO, *chunks: Chunk) -> str:
    view = TextView(out, io.StringIO())
    for part in chunks:
        view.chunk(part)
    view.end(RESULT)
    return out.getvalue()


def test_calls_are_shown_behind_the_answer_one_a_line() -> None:
    out, err = io.StringIO(), io.StringIO()
    view = TextView(out, err)
    view.chunk(chunk("Well."))
    calls = [
        ToolCall(id="a", name="größe", arguments={"city": "Köln", "n": [1, None]}),
        ToolCall(id="b", name="stop", arguments={}),
    ]
    view.end(RESULT.model_copy(update={"tool_calls": calls, "valid": False}))
    assert out.getvalue() == 'Well.\ngröße {"city": "Köln", "n": [1, null]}\nstop {}\n'
    assert "ended by stop · not of the shape asked for · worker w1" in err.getvalue()


def test_log_probabilities_are_a_line_a_token_behind_the_answer() -> None:
    told = [
        TokenLogprobs(
            logprob=-0.25,
            text="ye\x1bs",
            top=[
                Alternative(token=1, logprob=-0.25, text="ye\x1bs"),
                Alternative(token=2, logprob=-4.0, text="\\xe2", octets=b"\xe2"),
                Alternative(token=3, logprob=-9.0),
            ],
        ),
        TokenLogprobs(logprob=0.0, text="<|im_end|>", octets=b"", top=[]),
    ]
    out, err = io.StringIO(), io.StringIO()
    TextView(out, err).end(RESULT.model_copy(update={"tokens": [1, 9], "logprobs": told}))
    assert out.getvalue() == ""
    assert err.getvalue().splitlines()[:-1] == [
        r'77.9% "ye\u001bs"  of  77.9% "ye\u001bs",  1.8% "\\xe2",  0.0% "token_id:3"',
        '100.0% "<|im_end|>"',
    ]


def test_json_lines_hold_half_characters() -> None:
    told = [TokenLogprobs(logprob=-0.5, text="\\xe2", octets=b"\xe2", top=[])]
    out = io.StringIO()
    JsonLinesView(out).end(RESULT.model_copy(update={"logprobs": told}))
    assert json.loads(out.getvalue())["logprobs"] == [
        {"logprob": -0.5, "text": "\\xe2", "octets": "4g==", "top": []}
    ]
    assert Result.model_validate_json(out.getvalue()).logprobs == told


def test_a_pipe_has_the_answer_and_nothing_else() -> None:
    out = io.StringIO()
    text = shown_on(out, chunk("hm", Channel.REASONING), chunk("\x1b[2Jy"), chunk("es\t1"))
    assert text == "\x1b[2Jyes\t1\n"


def test_waiting_is_said_beside_the_answer_not_in_it() -> None:
    out, err = io.StringIO(), io.StringIO()
    TextView(out, err).waiting(5.0)
    assert out.getvalue() == ""
    assert err.getvalue().startswith("no token after 5 s: ")
    assert "`sparkle status`" in err.getvalue()


def test_an_answer_that_ends_its_line_gets_no_second_end() -> None:
    assert shown_on(io.StringIO(), chunk("yes\n")) == "yes\n"
    assert shown_on(io.StringIO()) == ""


def test_a_terminal_shows_thoughts_dim_and_obeys_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown_on(Terminal(), chunk("hm", Channel.REASONING), chunk("\x1b[2Jy\x07"), chunk("es"))
    assert text == "\x1b[2mhm\x1b[0m\n\n[2Jyes\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x00\x08\x7f\x9b2J", "2J"),
        ("äé日本🙂", "äé日本🙂"),
    ],
)
def test_control_characters_do_not_reach_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_figures_of_an_answer() -> None:
    assert usage_line(RESULT) == (
        "12 prompt + 21 answer tokens · queued 3.2 ms · first token after 120 ms · 10 tokens/s · "
        "ended by stop · worker w1"
    )
    usage = USAGE.model_copy(update={"cached_tokens": 10})
    cached = usage_line(RESULT.model_copy(update={"usage": usage}))
    assert cached.startswith("12 prompt (10 cached) + 21 answer tokens · ")


@pytest.mark.parametrize(
    ("completion_tokens", "first_token_s", "total_s", "rate"),
    [(21, 0.12, 2.12, 10.0), (1, 0.5, 0.5, 2.0), (5, 0.5, 0.5, 10.0), (0, 0.0, 0.0, 0.0)],
)
def test_the_rate_leaves_the_first_token_out(
    completion_tokens: int, first_token_s: float, total_s: float, rate: float
) -> None:
    usage = USAGE.model_copy(
        update={
            "completion_tokens": completion_tokens,
            "first_token_s": first_token_s,
            "total_s": total_s,
        }
    )
    assert tokens_per_s(usage) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 ms"), (0.0032, "3.2 ms"), (0.12, "120 ms"), (4.06, "4.1 s")]
)
def test_short_times(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.44, "0.4 s"), (12.3, "12 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def rendered(renderable: object) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def test_the_status_is_one_table() -> None:
    classes = (
        ClassStatus(PriorityClass.P0, waiting=3, running=2, oldest_s=0.44),
        ClassStatus(PriorityClass.P1, waiting=0, running=0, oldest_s=None),
    )
    worker = Heartbeat(
        worker="w1",
        region="eu",
        state=WorkerState.READY,
        model="sparkle-tiny",
        slots=8,
        running=[JOB],
        sent_ms=0,
    )
    assert rendered(status_table(QueueStatus("eu", classes, (worker,)))) == [
        ["p0", "3", "2", "0.4 s"],
        ["p1", "0", "0", "-"],
        ["w1", "ready", "1 of 8", "sparkle-tiny"],
    ]
    assert rendered(status_table(QueueStatus("eu", classes, ())))[-1] == ["no worker", "", "", ""]


def test_a_demo_job_tells_where_it_is() -> None:
    progress = Progress(demo_prompts()[0], PriorityClass.P1)
    states = [progress.state]
    note_queued(progress)
    states.append(progress.state.split(",")[0])
    note_chunk(progress, chunk("\x1b[2Jye"))
    note_chunk(progress, chunk("s"))
    states.append(progress.state)
    note_done(progress, RESULT)
    states.append(progress.state)
    assert states == [
        "to be sent",
        "in the queue as p1",
        "leased by w1, 2 tokens so far",
        "done: 2 tokens, ended by stop",
    ]
    assert progress.text == "[2Jyes"
    assert progress.first_token_s is not None
    row = rendered(summary_table([progress]))[0]
    assert [*row[:5], *row[6:]] == ["verdict", "p1", "12", "0", "3.2 ms", "21", "10"]


def test_the_table_of_the_demo_fits_an_old_terminal() -> None:
    # what a slow machine takes
    usage = USAGE.model_copy(update={"queue_s": 0.999, "cached_tokens": 10_000, "prompt_tokens": 10_000})
    jobs = [Progress(prompt, PriorityClass.P0, first_token_s=0.999) for prompt in demo_prompts()]
    for job in jobs:
        job.result = RESULT.model_copy(update={"usage": usage})
    console = Console(file=io.StringIO(), width=80)
    console.print(summary_table(jobs))
    assert isinstance(console.file, io.StringIO)
    assert "…" not in console.file.getvalue()


def test_the_demos_next_question_has_the_same_conversation_and_all_turns() -> None:
    prompt = demo_prompts()[1]
    following = next_prompt(prompt, "It is one.").job
    assert following.conversation == prompt.job.conversation
    asked = prompt.job.messages or []
    assert [turn.content for turn in following.messages or []] == [
        *(turn.content for turn in asked),
        "It is one.",
        "Write a note to my manager.",
    ]


def test_the_panels_of_a_terminal_stay_with_the_whole_answers() -> None:
    jobs = [Progress(prompt, PriorityClass.P0) for prompt in demo_prompts()]
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=40)
    with LiveView(console, jobs) as view:
        for job in jobs:
            note_chunk(job, chunk("\n".join(f"line {number}" for number in range(9))))
            view.chunk(job, chunk(""))
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().rpartition("verdict")[2]
    assert [f"line {number}" in last for number in (0, 8)] == [True, True]


@pytest.mark.parametrize(
    ("url", "region", "where"),
    [
        ("nats://127.0.0.1:4222", "local", ""),
        ("nats://127.0.0.1:5555", "local", " --nats nats://127.0.0.1:5555"),
        ("nats://127.0.0.1:4222", "eu", " --region eu"),
    ],
)
def test_the_hint_has_only_the_flags_that_are_needed(url: str, region: str, where: str) -> None:
    assert how_to_ask(url, region).splitlines() == [
        f'  sparkle ask "What is lateral movement?"{where}',
        f"  sparkle status --watch{where}",
    ]
