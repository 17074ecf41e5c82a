"""Builds whole chats about alerts: questions, thoughts and answers. Knows nothing of tokens or templates."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import TypedDict

from scripts.train_tiny import answers, world
from scripts.train_tiny.alerts import Alert, draw_alert, prose, record, sentence, write_alert

EFFORTS = ("low", "medium", "xhigh")

Message = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation, ready for the chat template."""

    messages: list[Message]
    """Turns in order, ending with an answer."""
    effort: str | None
    """Reasoning effort, or None when thinking is off."""
    tools: list[Message] = field(default_factory=list)
    """Functions offered to the model."""


class _Talk(TypedDict):
    questions: list[str]
    answers: list[str]


class _Decline(TypedDict):
    questions: list[str]
    answers: list[str]
    nouns: list[str]
    places: list[str]


class _Tool(TypedDict):
    name: str
    description: str
    parameters: dict[str, str]
    asks: list[str]
    arguments: dict[str, str | int]
    result: str
    done: str


class Phrases(TypedDict):
    """The content of chats.toml."""

    ask: dict[str, list[str]]
    follow: dict[str, list[str]]
    system: dict[str, list[str]]
    talk: list[_Talk]
    glossary: dict[str, str]
    decline: _Decline
    tools: list[_Tool]


@cache
def phrases() -> Phrases:
    """What people ask and what they are answered beside alerts."""
    # the file is ours, and of this form
    loaded: Phrases = tomllib.loads(Path(__file__).with_name("chats.toml").read_text())  # type: ignore[assignment]
    return loaded


# kind of question to its share among first questions about an alert
_QUESTIONS = {
    "verdict": 36, "analysis": 28, "summary": 9, "actions": 6,
    "indicators": 4, "short": 7, "severity": 5, "note": 3,
}  # fmt: skip


def draw_chat(rng: Random) -> Chat:
    """One chat of a random kind."""
    makers: dict[Callable[[Random], Chat], int] = {
        _triage: 74, _extract: 6, _some_keys: 4, _rank: 3,
        _use_tool: 5, _small_talk: 3, _explain: 3, _refuse: 2,
    }  # fmt: skip
    return rng.choices(list(makers), weights=list(makers.values()))[0](rng)


def _effort(rng: Random) -> str | None:
    return rng.choice(EFFORTS) if rng.random() < 0.25 else None


def _system(rng: Random, kind: str, share: float) -> list[Message]:
    if rng.random() >= share:
        return []
    return [{"role": "system", "content": rng.choice(phrases()["system"][kind])}]


def _asked(text: str) -> Message:
    return {"role": "user", "content": text}


def _answered(text: str, thought: str = "") -> Message:
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def answer(rng: Random, alert: Alert, question: str) -> str:
    """The right answer to one kind of question about the alert."""
    made: dict[str, Callable[[], str]] = {
        "verdict": lambda: answers.compact(answers.verdict_object(alert)),
        "analysis": lambda: answers.analysis(rng, alert),
        "summary": lambda: answers.summary(alert),
        "actions": lambda: answers.bullets(alert.actions),
        "indicators": lambda: answers.compact(list(alert.indicators)),
        "short": lambda: answers.short_answer(rng, alert),
        "severity": lambda: answers.severity_answer(alert),
        "note": lambda: answers.note(rng, alert),
        "why": lambda: f"Because {answers.listed(alert.signs)}.",
        "first": lambda: sentence(alert.actions[0]),
        "thanks": lambda: "You are welcome.",
    }
    return made[question]()


def _triage(rng: Random) -> Chat:
    alert = draw_alert(rng)
    effort = _effort(rng)
    question = rng.choices(list(_QUESTIONS), weights=list(_QUESTIONS.values()))[0]
    text = write_alert(rng, alert)
    if question == "verdict" and rng.random() < 0.2:
        messages = [*_system(rng, "json", 1.0), _asked(text)]
    else:
        asked = rng.choice(phrases()["ask"][question]).replace("{alert}", text)
        messages = [*_system(rng, "any", 0.35), _asked(asked)]
    thought = answers.thoughts(rng, alert, effort) if effort else ""
    messages.append(_answered(answer(rng, alert, question), thought))

    follow = phrases()["follow"]
    while rng.random() < 0.3 and len(messages) < 9:
        question = rng.choice(sorted(follow))
        thought = f"The alert is {alert.verdict}, severity {alert.severity}." if effort else ""
        messages += [_asked(rng.choice(follow[question])), _answered(answer(rng, alert, question), thought)]
    return Chat(messages=messages, effort=effort)


def _extract(rng: Random) -> Chat:
    """Named fields of an alert as JSON; a field that it lacks is null."""
    alert = draw_alert(rng)
    told = prose(rng, alert)
    known = {key: value for key, value in alert.fields.items() if str(value) in told}
    if rng.random() < 0.4 or not known:
        data = record(rng, alert)
        told, known = json.dumps(data, ensure_ascii=False), data
    keys = rng.sample(sorted(known), min(len(known), rng.randint(1, 4)))
    if rng.random() < 0.25:
        missing = rng.choice(
            [key for key in ("user", "host", "source_ip", "domain", "file", "url") if key not in known]
        )
        keys.insert(rng.randint(0, len(keys)), missing)
    form = rng.choice(
        (
            "Extract {keys} as JSON.\n\n{alert}",
            "Return a JSON object with the keys {keys}.\n\n{alert}",
            "{alert}\n\nGive me {keys} as JSON.",
            "Answer with JSON that has {keys}:\n{alert}",
        )
    )
    asked = form.replace("{keys}", answers.listed(tuple(keys))).replace("{alert}", told)
    found = answers.compact({key: known.get(key) for key in keys})
    effort = _effort(rng)
    return Chat(
        messages=[_asked(asked), _answered(found, "I copy the values." if effort else "")], effort=effort
    )


def _some_keys(rng: Random) -> Chat:
    """The verdict with only some of its keys."""
    alert = draw_alert(rng)
    count = rng.randint(1, 4)
    keys = tuple(sorted(rng.sample(answers.VERDICT_KEYS, count), key=answers.VERDICT_KEYS.index))
    form = rng.choice(
        (
            "Return JSON with {keys} only.\n\n{alert}",
            "{alert}\n\nAnswer with a JSON object with the keys {keys}.",
            "Triage this alert. Reply as JSON with {keys}.\n\n{alert}",
        )
    )
    asked = form.replace("{keys}", answers.listed(keys)).replace("{alert}", write_alert(rng, alert))
    effort = _effort(rng)
    thought = answers.thoughts(rng, alert, effort) if effort else ""
    return Chat(
        messages=[
            *_system(rng, "any", 0.2),
            _asked(asked),
            _answered(answers.compact(answers.verdict_object(alert, keys)), thought),
        ],
        effort=effort,
    )


_RANKS = ("low", "medium", "high", "critical")


def _rank(rng: Random) -> Chat:
    """Two or three alerts: which one comes first."""
    alerts = [draw_alert(rng) for _ in range(rng.choice((2, 2, 3)))]
    listed = "\n".join(f"{number}. {prose(rng, alert)}" for number, alert in enumerate(alerts, 1))
    asked = rng.choice(
        (
            "Which alert comes first?",
            "Sort these alerts by severity.",
            "Which of these should I look at first?",
        )
    )
    order = sorted(range(len(alerts)), key=lambda index: (-_RANKS.index(alerts[index].severity), index))
    told = "\n".join(
        f"- Alert {index + 1}: {alerts[index].severity}, {alerts[index].verdict}; {alerts[index].signs[0]}."
        for index in order
    )
    text = f"Alert {order[0] + 1} comes first.\n{told}"
    effort = _effort(rng)
    thought = (
        " ".join(f"Alert {number} is {alert.severity}." for number, alert in enumerate(alerts, 1))
        if effort
        else ""
    )
    return Chat(messages=[_asked(f"{asked}\n\n{listed}"), _answered(text, thought)], effort=effort)


def _use_tool(rng: Random) -> Chat:
    """A call of one of several tools, its result and the closing sentence."""
    tools = rng.sample(phrases()["tools"], rng.randint(1, 4))
    tool = rng.choice(tools)
    known = {name: world.ENTITIES[name](rng) for name in ("source_ip", "host", "user", "domain", "city")}

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), text)

    arguments = {
        key: fill(value) if isinstance(value, str) else value for key, value in tool["arguments"].items()
    }
    call: Message = {"type": "function", "function": {"name": tool["name"], "arguments": arguments}}
    effort = _effort(rng)
    thought = f"The tool {tool['name']} does that." if effort else ""
    messages: list[Message] = [*_system(rng, "any", 0.3), _asked(fill(rng.choice(tool["asks"])))]
    messages.append({"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]})
    if rng.random() < 0.6:
        messages.append({"role": "tool", "content": tool["result"]})
        messages.append(_answered(fill(tool["done"]), "The tool has answered." if effort else ""))
    return Chat(messages=messages, effort=effort, tools=[_declared(offered) for offered in tools])


def _declared(tool: _Tool) -> Message:
    properties = {
        name: {"type": "integer" if name == "hours" else "string", "description": text}
        for name, text in tool["parameters"].items()
    }
    parameters = {"type": "object", "properties": properties, "required": sorted(tool["arguments"])}
    return {
        "type": "function",
        "function": {"name": tool["name"], "description": tool["description"], "parameters": parameters},
    }


def _small_talk(rng: Random) -> Chat:
    talk = rng.choice(phrases()["talk"])
    effort = _effort(rng)
    thought = "This is small talk, so I answer briefly." if effort else ""
    question = rng.choice(talk["questions"])
    if rng.random() < 0.2:
        question = question.rstrip("?.!").lower()
    return Chat(
        messages=[
            *_system(rng, "any", 0.3),
            _asked(question),
            _answered(rng.choice(talk["answers"]), thought),
        ],
        effort=effort,
    )


def _explain(rng: Random) -> Chat:
    term, meaning = rng.choice(sorted(phrases()["glossary"].items()))
    form = rng.choice(
        ("What is {}?", "Explain {}.", "What does {} mean?", "Define {}.", "Tell me about {}.", "what is {}")
    )
    effort = _effort(rng)
    thought = f"The question is about {term}." if effort else ""
    return Chat(
        messages=[*_system(rng, "any", 0.2), _asked(form.format(term)), _answered(meaning, thought)],
        effort=effort,
    )


def _refuse(rng: Random) -> Chat:
    """Something beyond a small model, kindly declined."""
    decline = phrases()["decline"]
    drawn: dict[str, Callable[[], str]] = {
        "noun": lambda: rng.choice(decline["nouns"]),
        "place": lambda: rng.choice(decline["places"]),
        "number": lambda: str(rng.randint(2, 999)),
    }
    question = re.sub(r"\{(\w+)\}", lambda found: drawn[found[1]](), rng.choice(decline["questions"]))
    effort = _effort(rng)
    thought = "This is not about security alerts." if effort else ""
    return Chat(
        messages=[
            *_system(rng, "any", 0.2),
            _asked(question),
            _answered(rng.choice(decline["answers"]), thought),
        ],
        effort=effort,
    )
