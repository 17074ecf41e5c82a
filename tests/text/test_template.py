"""The checkpoint's template: rendered as transformers does, bounded, silent about content when it fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from sparkle.errors import CheckpointError, InvalidMessage, UnsupportedModel
from sparkle.schemas.job import TextPart, Thinking, Turn
from sparkle.schemas.tools import Tool, ToolCall
from sparkle.text import template as template_module
from sparkle.text.template import ChatTemplate
from sparkle.text.template_file import read_template

TINY = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
OPEN = "{{ '<think>\\n' if enable_thinking is not sameas false else '<think>\\n\\n</think>\\n\\n' }}"
USER = Turn(role="user", content="hello")
SECRET = "s3cret-content"


def made(source: str, **special_tokens: str) -> ChatTemplate:
    """A template whose last part is the generation prompt."""
    return ChatTemplate(source + OPEN, special_tokens)


def rendered(source: str, *turns: Turn, thinking: Thinking = Thinking.OFF) -> str:
    """What `source` writes, without the generation prompt."""
    text = made(source, eos_token="<|im_end|>").render(turns or [USER], thinking, now=NOON)
    opened = "<think>\n\n</think>\n\n" if thinking is Thinking.OFF else "<think>\n"
    assert text.endswith(opened)
    return text.removesuffix(opened)


class TestThinking:
    @pytest.mark.parametrize(
        ("thinking", "expected"),
        [
            (Thinking.OFF, "false-undefined"),
            (Thinking.LOW, "true-low"),
            (Thinking.MEDIUM, "true-medium"),
            (Thinking.XHIGH, "true-xhigh"),
        ],
    )
    def test_levels_become_the_templates_two_switches(self, thinking: Thinking, expected: str) -> None:
        source = "{{ enable_thinking|tojson }}-{{ reasoning_effort|default('undefined') }}"
        assert rendered(source, thinking=thinking) == expected

    def test_off_is_false_itself(self) -> None:
        assert rendered("{{ enable_thinking is sameas false }}") == "True"

    def test_past_reasoning_is_passed_on_and_absent_where_there_was_none(self) -> None:
        turns = [
            USER,
            Turn(role="assistant", content="a", reasoning="r"),
            Turn(role="assistant", content="b"),
        ]
        source = "{% for turn in messages %}[{{ turn.reasoning_content|default('-') }}]{% endfor %}"
        assert rendered(source, *turns) == "[-][r][-]"


class TestEnvironment:
    def test_parts_of_a_turn_are_joined(self) -> None:
        turn = Turn(role="user", content=[TextPart(text="one, "), TextPart(text="two")])
        assert rendered("{{ messages[0].content }}", turn) == "one, two"

    def test_json_is_written_without_html_escapes(self) -> None:
        turn = Turn(role="user", content="<é & 'q'>")
        assert rendered("{{ messages[0]|tojson }}", turn) == json.dumps(
            {"role": "user", "content": "<é & 'q'>"}, ensure_ascii=False
        )
        assert rendered(
            "{{ [1, {'b': 2, 'a': 'é'}]|tojson(ensure_ascii=True, indent=1, sort_keys=True) }}"
        ) == (json.dumps([1, {"a": "é", "b": 2}], indent=1))

    def test_loop_controls_and_generation_blocks(self) -> None:
        skips = "{% if i == 1 %}{% continue %}{% elif i > 2 %}{% break %}{% endif %}"
        assert rendered("{% for i in range(9) %}" + skips + "{{ i }}{% endfor %}") == "02"
        assert rendered("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhelloc"

    def test_the_date_is_the_one_given(self) -> None:
        assert rendered("{{ strftime_now('%d %b %Y') }}") == "04 May 2026"

    def test_special_tokens_are_variables(self) -> None:
        assert rendered("{{ eos_token }}|{{ bos_token is defined }}") == "<|im_end|>|False"

    def test_lines_of_blocks_leave_no_white_space(self) -> None:
        assert rendered("{% if true %}\n  x\n  {% endif %}\ny") == "  x\ny"


class TestRefusals:
    def test_a_reason_of_the_template_is_told(self) -> None:
        template = made("{% if messages|length > 1 %}{{ raise_exception('One turn only.') }}{% endif %}")
        with pytest.raises(InvalidMessage, match=r"refused by the chat template: One turn only\."):
            template.render([USER, USER], Thinking.OFF, now=NOON)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ raise_exception(messages[1].content) }}",
            "{{ raise_exception('Bad: ' ~ messages[1].content) }}",
            "{{ messages[1].content.nothing.more }}",
            "{{ messages[1].content + 1 }}",
            "{{ messages[1].content|int('x') + 1 }}",
            "{{ {}[messages[1].content].x }}",
            "{% include messages[1].content %}",
            "{{ messages[1].content.__class__.__mro__ }}",
            "{{ messages.append(messages[1].content) }}",
            "{{ strftime_now(messages[1]) }}",
        ],
    )
    def test_no_error_shows_the_chats_text(self, source: str) -> None:
        template = made(f"{{% if messages|length > 1 %}}{source}{{% endif %}}")
        with pytest.raises(InvalidMessage) as caught:
            template.render([USER, Turn(role="user", content=SECRET)], Thinking.OFF, now=NOON)
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_the_length_written_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(template_module, "MAX_RENDERED_CHARS", 1000)
        template = made(
            "{% if messages|length > 1 %}{% for i in range(99999) %}{{ i }} {% endfor %}{% endif %}"
        )
        with pytest.raises(InvalidMessage, match="over 1000 characters"):
            template.render([USER, USER], Thinking.OFF, now=NOON)


class TestLoading:
    def write(self, directory: Path, name: str, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text, encoding="utf-8")

    def test_the_first_of_three_places_counts(self, tmp_path: Path) -> None:
        self.write(tmp_path, "chat_template.json", {"chat_template": "third"})
        assert read_template(tmp_path) == ("third", {})
        self.write(tmp_path, "tokenizer_config.json", {"chat_template": "second"})
        assert read_template(tmp_path) == ("second", {})
        self.write(tmp_path, "chat_template.jinja", "first")
        assert read_template(tmp_path) == ("first", {})

    def test_of_named_templates_the_default_counts(self, tmp_path: Path) -> None:
        named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
        self.write(tmp_path, "tokenizer_config.json", {"chat_template": named})
        assert read_template(tmp_path)[0] == "d"

    def test_special_tokens_are_text_or_objects(self, tmp_path: Path) -> None:
        config = {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "bos_token": None}
        self.write(tmp_path, "tokenizer_config.json", {**config, "chat_template": "x"})
        assert read_template(tmp_path)[1] == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

    def test_without_a_template_the_error_says_what_to_add(self, tmp_path: Path) -> None:
        self.write(
            tmp_path, "tokenizer_config.json", {"chat_template": [{"name": "tool_use", "template": "t"}]}
        )
        with pytest.raises(CheckpointError, match=r"add chat_template\.jinja"):
            ChatTemplate.load(tmp_path)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
        with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read"):
            ChatTemplate.load(tmp_path)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            pytest.param("{% if %}", "chat template, line 1: ", id="syntax"),
            pytest.param("\n{{ x|no_such_filter }}", "line 2: No filter named 'no_such_filter'", id="filter"),
            pytest.param("{{ raise_exception('No.') }}", "thinking off: .* No.", id="refuses every chat"),
            pytest.param("<think>\n", "thinking off: must end outside <think>", id="always thinks"),
            pytest.param("{{ messages }}", "thinking low: must end inside <think>", id="never thinks"),
            pytest.param("{#" + "x" * 262_144 + "#}", "262148 characters but at most 262144", id="long"),
            pytest.param("{{" + "(" * 100_000, "nested too deep", id="deep"),
        ],
    )
    def test_what_is_no_template_of_this_model_is_refused(self, source: str, message: str) -> None:
        with pytest.raises(UnsupportedModel, match=message):
            ChatTemplate(source, {})


plain = st.text(max_size=30)
turns = st.lists(
    st.builds(Turn, role=st.just("user"), content=plain)
    | st.builds(Turn, role=st.just("assistant"), content=plain, reasoning=st.none() | plain),
    max_size=4,
)


@given(st.none() | plain, turns, st.sampled_from(Thinking))
@settings(max_examples=50)
def test_the_bundled_template_renders_as_with_transformers(
    tiny_template: ChatTemplate, system: str | None, middle: list[Turn], thinking: Thinking
) -> None:
    first = [] if system is None else [Turn(role="system", content=system)]
    chat = [*first, *middle, USER]
    messages = [
        {"role": turn.role, "content": turn.content}
        | ({} if turn.reasoning is None else {"reasoning_content": turn.reasoning})
        for turn in chat
    ]
    texts, _ = chat_template_utils.render_jinja_template(  # pyright: ignore[reportUnknownMemberType] # half typed
        [messages],
        chat_template=(TINY / "chat_template.jinja").read_text(encoding="utf-8"),
        add_generation_prompt=True,
        enable_thinking=thinking is not Thinking.OFF,
        reasoning_effort=thinking.value,
    )
    assert tiny_template.render(chat, thinking, now=NOON) == texts[0]


class TestCalls:
    def test_outcomes_come_in_the_order_of_their_calls(self) -> None:
        calls = [ToolCall(id=name, name="f", arguments={}) for name in "abc"]
        asked = [
            USER,
            Turn(role="assistant", content="", tool_calls=calls),
            *(Turn(role="tool", content=name.upper(), tool_call_id=name) for name in ("c", "x", "a", "b")),
            Turn(role="user", content="and"),
            Turn(role="assistant", content="", tool_calls=[calls[1], calls[0]]),
            *(Turn(role="tool", content=name, tool_call_id=name) for name in "ab"),
        ]
        told = "{{ turn.content }}{{ turn.tool_call_id }} "
        source = "{% for turn in messages if turn.role == 'tool' %}" + told + "{% endfor %}"
        assert rendered(source, *asked) == "Aa Bb Cc Xx bb aa "

    def test_absent_descriptions_and_parameters_are_not_written(self) -> None:
        tools = [
            Tool(name="f"),
            Tool(name="g", description="G.", parameters={"type": "object"}, strict=False),
        ]
        text = made("{{ tools|tojson }}").render([USER], Thinking.OFF, now=NOON, tools=tools)
        written = [
            {"type": "function", "function": {"name": "f"}},
            {
                "type": "function",
                "function": {"name": "g", "description": "G.", "parameters": {"type": "object"}},
            },
        ]
        assert text.startswith(json.dumps(written))
        assert rendered("{{ tools is none }}") == "True"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=5,
).filter(lambda value: "Infinity" not in json.dumps(value))
names = st.from_regex(r"[a-zäö天_]{1,8}", fullmatch=True)
objects = st.dictionaries(plain, values, max_size=3)
all_tools = st.lists(
    st.builds(Tool, name=names, description=st.none() | plain, parameters=st.none() | objects), max_size=3
)
tool_turns = st.tuples(
    st.lists(st.tuples(names, objects), min_size=1, max_size=3),
    plain,
    st.lists(plain, min_size=1, max_size=3),
)


@given(all_tools, st.lists(tool_turns, max_size=2), st.sampled_from(Thinking))
@settings(max_examples=150)
def test_tools_calls_and_outcomes_render_as_with_transformers(
    tiny_template: ChatTemplate, tools: list[Tool], rounds: list[Any], thinking: Thinking
) -> None:
    chat = [USER]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    for calls, content, outcomes in rounds:
        made_calls = [
            ToolCall(id=f"c{place}", name=name, arguments=arguments)
            for place, (name, arguments) in enumerate(calls)
        ]
        chat.append(Turn(role="assistant", content=content, tool_calls=made_calls))
        functions = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
        messages.append({"role": "assistant", "content": content, "tool_calls": functions})
        for place, outcome in enumerate(outcomes):
            chat.append(Turn(role="tool", content=outcome, tool_call_id=f"c{place}"))
            messages.append({"role": "tool", "content": outcome})
    described: list[dict[str, Any]] = []
    for tool in tools:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        said = {key: value for key, value in function.items() if value is not None}
        described.append({"type": "function", "function": said})
    texts, _ = chat_template_utils.render_jinja_template(  # pyright: ignore[reportUnknownMemberType] # half typed
        [messages],
        tools=described or None,  # pyright: ignore[reportArgumentType] # functions only, by its hints
        chat_template=(TINY / "chat_template.jinja").read_text(encoding="utf-8"),
        add_generation_prompt=True,
        enable_thinking=thinking is not Thinking.OFF,
        reasoning_effort=thinking.value,
    )
    assert tiny_template.render(chat, thinking, now=NOON, tools=tools) == texts[0]
