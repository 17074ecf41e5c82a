"""The bundled chat template writes exactly these texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from scripts.train_tiny.render import load_template

CHECKPOINT = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"

Render = Callable[..., str]

QUESTION: dict[str, Any] = {"role": "user", "content": " Hi "}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
CAREFUL = "Think the question through with care, check each step, then answer."
BRIEF = "Think only as much as the question needs, then answer."


@pytest.fixture(scope="module")
def render() -> Render:
    return load_template(CHECKPOINT).render


def test_question_with_thinking_off(render: Render) -> None:
    text = render(messages=[QUESTION], enable_thinking=False, add_generation_prompt=True)
    assert text == ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(("effort", "line"), [("xhigh", CAREFUL), ("low", BRIEF), (None, CAREFUL)])
def test_effort_opens_the_system_message(render: Render, effort: str | None, line: str) -> None:
    system = {"role": "system", "content": "Be kind.\n"}
    text = render(messages=[system, QUESTION], reasoning_effort=effort, add_generation_prompt=True)
    assert text == (
        f"<|im_start|>system\n{line}\n\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_medium_effort_says_nothing(render: Render) -> None:
    text = render(messages=[QUESTION], reasoning_effort="medium", add_generation_prompt=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_thinking_off_ignores_the_effort(render: Render) -> None:
    text = render(messages=[QUESTION], reasoning_effort="high", enable_thinking=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


def test_past_answers_keep_their_reasoning(render: Render) -> None:
    text = render(messages=[QUESTION, ANSWER, QUESTION], enable_thinking=False)
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\nYes.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_an_answer_extends_the_prompt_it_was_given(render: Render) -> None:
    prompt = render(messages=[QUESTION], enable_thinking=False, add_generation_prompt=True)
    told = render(messages=[QUESTION, {"role": "assistant", "content": "Yes."}], enable_thinking=False)
    assert told == prompt + "Yes.<|im_end|>\n"


def test_reasoning_before_the_last_question_can_be_dropped(render: Render) -> None:
    messages = [QUESTION, ANSWER, QUESTION, ANSWER]
    text = render(messages=messages, enable_thinking=False, preserve_thinking=False)
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\nYes.<|im_end|>\n"
    )


def test_tools_calls_and_responses(render: Render) -> None:
    calls: list[dict[str, Any]] = [
        {"function": {"name": "block", "arguments": {"address": "192.0.2.1", "hours": 2, "tags": ["a"]}}},
        {"function": {"name": "list", "arguments": {}}},
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Act."},
        QUESTION,
        {"role": "assistant", "content": "Now.", "tool_calls": calls},
        {"role": "tool", "content": "done"},
        {"role": "tool", "content": [{"type": "text", "text": "none"}]},
    ]
    tools = [{"type": "function", "function": {"name": "block"}}]
    text = render(messages=messages, tools=tools, enable_thinking=False)
    assert text == (
        "<|im_start|>system\n# Tools\n\nThese functions can be called:\n\n<tools>\n"
        '{"type": "function", "function": {"name": "block"}}\n</tools>\n\n'
        "To call one, write nothing after this form:\n\n"
        "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>\n\n"
        "Give every required parameter. Several calls may follow each other.\n\nAct.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nNow.\n\n"
        "<tool_call>\n<function=block>\n<parameter=address>\n192.0.2.1\n</parameter>\n"
        '<parameter=hours>\n2\n</parameter>\n<parameter=tags>\n["a"]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=list>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ndone\n</tool_response>\n"
        "<tool_response>\nnone\n</tool_response><|im_end|>\n"
    )


def test_pictures_and_videos_become_placeholders(render: Render) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "video"}]
    text = render(messages=[{"role": "user", "content": parts}], enable_thinking=False, add_vision_id=True)
    assert text == (
        "<|im_start|>user\nPicture 1: <|vision_start|><|image_pad|><|vision_end|>and"
        "Video 1: <|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("messages", "settings", "reason"),
    [
        ([QUESTION], {"reasoning_effort": "high"}, "reasoning_effort"),
        ([ANSWER], {}, "no question"),
        ([{"role": "user", "content": "<tool_response>x</tool_response>"}], {}, "no question"),
        ([QUESTION, {"role": "system", "content": "late"}], {}, "first message"),
        ([{"role": "developer", "content": "x"}, QUESTION], {}, "A role must be"),
        ([{"role": "system", "content": [{"type": "image"}]}, QUESTION], {}, "text only"),
        ([{"role": "user", "content": 3}], {}, "text or a list"),
        (
            [
                QUESTION,
                {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{}"}]},
            ],
            {},
            "mapping",
        ),
    ],
)
def test_bad_messages_are_refused(
    render: Render, messages: list[dict[str, Any]], settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(TemplateError, match=reason):
        render(messages=messages, **settings)
