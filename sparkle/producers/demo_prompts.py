"""What the demo asks: alerts and a question as the bundled model was trained on. Knows no terminal."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.schemas.job import Job, Sampling, Turn

BRUTE_FORCE = (
    '{"alert_id": "ALR-4711", "title": "Brute-force attempt", "user": "marco.klein", "host": "ops-web-02", '
    '"source_ip": "203.0.113.9", "service": "SSH", "attempts": 412, "outcome": "success", '
    '"source_reputation": "malicious", "asset_criticality": "high"}'
)
PHISHING = (
    "lena.novak received a mail from invoice@parcel-login.example with the subject 'Invoice overdue' and a "
    "link to https://parcel-login.example/invoice. lena.novak entered credentials on the page. The sender "
    "failed SPF."
)
SCAN = (
    "198.51.100.24 tried 312 ports on ops-web-02 (10.4.7.21). Nothing followed the scan. 198.51.100.24 is "
    "not known."
)
SCAN_ANALYSIS = (
    "I rate this alert as suspicious. 198.51.100.24 tried 312 ports on ops-web-02 (10.4.7.21). Reasons: "
    "nothing followed the scan and 198.51.100.24 is not known. Severity: medium. Next steps: watch "
    "198.51.100.24 for a day and check which services of ops-web-02 are reachable."
)
NEXT_QUESTION = Turn(role="user", content="Write a note to my manager.")


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One prompt and what it shows."""

    name: str
    shows: str
    job: Job

    @property
    def question(self) -> str:
        """The last turn, which the answer is to."""
        content = self.job.messages[-1].content if self.job.messages else ""
        assert isinstance(content, str), "the demo asks in plain text"
        return content.replace("\n", " ")


def demo_prompts() -> list[DemoPrompt]:
    """Four jobs of different lengths; each likeliest token is taken, so every run reads the same."""
    return [
        _prompt("verdict", "an alert in, a JSON verdict out", 220, *_verdict()),
        _prompt("analysis", "an alert in, an analysis in words out", 160, *_analysis()),
        _prompt("follow-up", "a later question of a conversation, all of it new here", 100, *_follow_up()),
        _prompt("chat", "a short question", 50, Turn(role="user", content="What is a work queue?")),
    ]


def next_prompt(prompt: DemoPrompt, answer: str) -> DemoPrompt:
    """The next question of a prompt's conversation, behind its answer."""
    turns = (*(prompt.job.messages or ()), Turn(role="assistant", content=answer), NEXT_QUESTION)
    return _prompt(
        "note",
        f"the question behind the {prompt.name}, which is not read again",
        100,
        *turns,
        conversation=prompt.name,
    )


def _verdict() -> tuple[Turn, ...]:
    system = "You triage security alerts. Answer with one JSON object."
    return Turn(role="system", content=system), Turn(role="user", content=BRUTE_FORCE)


def _analysis() -> tuple[Turn, ...]:
    return (Turn(role="user", content=f"What do you make of this alert?\n\n{PHISHING}"),)


def _follow_up() -> tuple[Turn, ...]:
    return (
        Turn(role="user", content=f"Triage this alert:\n\n{SCAN}"),
        Turn(role="assistant", content=SCAN_ANALYSIS),
        NEXT_QUESTION,
    )


def _prompt(
    name: str, shows: str, max_tokens: int, *turns: Turn, conversation: str | None = None
) -> DemoPrompt:
    job = Job(
        messages=list(turns),
        conversation=conversation or name,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0.0),
    )
    return DemoPrompt(name, shows, job)
