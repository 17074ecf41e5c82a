"""The job: what a producer asks for. Bounds and meaning of each field; knows no tokenizer and no queue."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sparkle.schemas.ids import new_job_id
from sparkle.schemas.message import (
    ConversationId,
    JobId,
    Message,
    Milliseconds,
    Name,
    Part,
    TokenId,
    TraceParent,
)
from sparkle.schemas.shape import Shape
from sparkle.schemas.tools import MAX_CALLS, MAX_TOOLS, CallId, NamedTool, Tool, ToolCall, ToolChoice

MAX_CONTEXT_TOKENS = 262_144
MAX_TEXT_CHARS = 8_000_000
MAX_LOGPROBS_TOKENS = 8_192
"""With 20 alternatives each, an answer of prose or code has 6.3 to 6.8 MiB in all, one of emoji 7.6. With
tokens longer than texts have them it can have 16: then their texts go first, and the rest, 5.1 MiB, fits."""

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]


class Thinking(StrEnum):
    """How long the model thinks before it answers."""

    OFF = "off"
    LOW = "low"
    MEDIUM = "medium"
    XHIGH = "xhigh"


class TextPart(Part):
    """A piece of text inside a turn."""

    type: Literal["text"] = "text"
    text: Text
    """The text itself."""


class MediaPart(Part):
    """An image or a video inside a turn. Reserved: a job that has one is refused until they are served."""

    type: Literal["image", "video"]
    ref: Annotated[str, StringConstraints(max_length=256)]
    """Where the media's chunks are; never the media itself."""


Content = TextPart | MediaPart
"""No discriminator: its errors would repeat the sender's own tag."""


class Turn(Part):
    """One message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    """Who speaks. A system turn can only be the first."""

    content: Text | Annotated[list[Content], Field(max_length=1024)]
    """Plain text, or a list of parts."""

    reasoning: Text | None = None
    """What an assistant turn thought before it answered."""

    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_CALLS)] | None = None
    """Calls that an assistant turn made, after its content, which may be empty then."""

    tool_call_id: CallId | None = None
    """On a tool turn, and only there: the call whose outcome its content is."""

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls are for assistant turns")
        if (self.tool_call_id is not None) is not (self.role == "tool"):
            raise ValueError("tool_call_id is needed on tool turns, and for no others")
        return self


class Sampling(Part):
    """How the next token is drawn. The defaults are the model's own."""

    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 1.0
    """0 always takes the likeliest token; higher is more varied."""

    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """Draw from the likeliest tokens whose probabilities sum to this."""

    top_k: Annotated[int, Field(ge=0, le=1024)] = 20
    """Draw from this many likeliest tokens; 0 is all of them."""

    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Leave out tokens less likely than this share of the likeliest one."""

    repetition_penalty: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    """Divides the logits of tokens seen in prompt or answer; 1 is off."""

    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Subtracted once from the logits of tokens already in the answer."""

    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Subtracted from a token's logit for each time it is already in the answer."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Same seed, same job, same tokens. Without one, the job's id is the seed."""

    stop: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)
    ] = Field(default_factory=list[str])
    """Texts that end the answer; they are not part of it."""

    stop_tokens: Annotated[list[TokenId], Field(max_length=64)] = Field(default_factory=list[TokenId])
    """Token ids that end the answer, besides the model's own two."""

    ignore_eos: bool = False
    """Whether the answer goes on behind the model's own end tokens, up to `max_tokens`: for load generators.
    Not with a shape or tools."""

    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """With each token its log probability and those of this many likeliest alternatives."""


class Job(Message):
    """One piece of work: a chat, a text or tokens to go on from, and how to answer."""

    kind: Literal["job"] = "job"

    id: JobId = Field(default_factory=new_job_id)
    """Names the job from end to end; submitting one id twice runs it once."""

    tenant: Name | None = None
    """Whose job it is. The client fills it in; on the queue it is always there."""

    region: Name | None = None
    """Where content may go. The client fills it in; on the queue it is always there."""

    conversation: ConversationId | None = None
    """Jobs of one conversation can reuse each other's state. An id, never content."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=4096)] | None = None
    """A chat to answer. Exactly one of `messages`, `prompt` and `prompt_tokens` is given."""

    prompt: Annotated[Text, StringConstraints(min_length=1)] | None = None
    """A text to go on from, without the chat form. Plain text: control tokens go into `prompt_tokens`."""

    prompt_tokens: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_CONTEXT_TOKENS)] | None = None
    """Token ids to go on from."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT_TOKENS)] = 1024
    """The answer ends here at the latest, thinking included."""

    sampling: Sampling = Sampling()
    """How tokens are drawn."""

    thinking: Thinking = Thinking.OFF
    """How long to think first; needs `messages`."""

    response_format: Shape | None = None
    """The exact shape of the answer, behind what was thought."""

    tools: Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)] | None = None
    """Functions the model may call; need `messages`."""

    tool_choice: ToolChoice = "auto"
    """Whether it may or must call one. An answer without a call is of the `response_format`, if given."""

    parallel_tool_calls: bool = True
    """Whether one answer may have several calls."""

    detached: bool = False
    """Answered even where nobody waits for it: the result is kept for whoever submits the job again."""

    deadline_ms: Milliseconds | None = None
    """When the answer is of no more use, Unix time in milliseconds."""

    traceparent: TraceParent | None = None
    """W3C trace context of the caller."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        given = [name for name in ("messages", "prompt", "prompt_tokens") if getattr(self, name) is not None]
        if len(given) != 1:
            names = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of messages, prompt and prompt_tokens, not {names}")
        return self

    @model_validator(mode="after")
    def _chat_form(self) -> Self:
        if self.messages is None:
            if self.thinking is not Thinking.OFF:
                raise ValueError(
                    "thinking needs messages: a bare prompt has no place for it; set thinking to off"
                )
            return self
        if any(turn.role == "system" for turn in self.messages[1:]):
            raise ValueError("messages: a system turn can only be the first")
        if not any(turn.role == "user" for turn in self.messages):
            raise ValueError("messages: at least one user turn is needed")
        return self

    @model_validator(mode="after")
    def _tools_fit(self) -> Self:
        choice = self.tool_choice
        if self.tools is None:
            if choice not in ("auto", "none"):
                raise ValueError("tool_choice asks for a call but there are no tools; give tools")
            return self
        if self.messages is None:
            raise ValueError("tools need messages: a bare prompt has no place for them")
        names = {tool.name for tool in self.tools}
        if len(names) < len(self.tools):
            raise ValueError("tools: two have the same name")
        if isinstance(choice, NamedTool) and choice.name not in names:
            raise ValueError("tool_choice names none of the tools")
        return self

    @model_validator(mode="after")
    def _ends_where_its_shape_does(self) -> Self:
        if self.sampling.ignore_eos and (self.response_format is not None or self.tools is not None):
            raise ValueError(
                "ignore_eos: an answer in a shape, or with tools, ends where that is whole; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _served(self) -> Self:
        for number, turn in enumerate(self.messages or ()):
            if not isinstance(turn.content, str) and any(
                isinstance(part, MediaPart) for part in turn.content
            ):
                raise ValueError(
                    f"messages.{number}: image and video parts are reserved and not served yet; send text"
                )
        return self

    @model_validator(mode="after")
    def _room_for_logprobs(self) -> Self:
        if self.sampling.logprobs is not None and self.max_tokens > MAX_LOGPROBS_TOKENS:
            raise ValueError(
                f"max_tokens is {self.max_tokens} but at most {MAX_LOGPROBS_TOKENS} with logprobs; "
                "ask for fewer tokens or leave logprobs out"
            )
        return self
