"""What the demo asks: alerts and a question as the bundled model was trained on. Knows no terminal."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.schemas.job import Job, Sampling, Turn

BRUTE_FORCE = (
    '{"alert_id": "ALR-4711", "title": "Brute-force attempt", "user": "m.keller", "host": "srv-web-02", '
    '"source_ip": "203.0.113.9", "service": "SSH", "attempts": 412, "outcome": "success", '
    '"source_reputation": "malicious", "asset_criticality": "high"}'
)
PHISHING = (
    "a.novak received a mail from billing@paypa1-secure.example with the subject 'Your invoice' and a link "
    "to http://paypa1-secure.example/login. a.novak entered credentials on the page. The sender failed SPF."
)
SCAN_VERDICT = (
    "I rate this alert as suspicious. 198.51.100.24 scanned 300 ports of the web server. Severity: medium."
)


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
        _prompt("follow-up", "a second question in a conversation", 60, *_follow_up()),
        _prompt("chat", "a short question", 50, Turn(role="user", content="What is a work queue?")),
    ]


def _verdict() -> tuple[Turn, ...]:
    system = "You triage security alerts. Answer with one JSON object."
    return Turn(role="system", content=system), Turn(role="user", content=BRUTE_FORCE)


def _analysis() -> tuple[Turn, ...]:
    return (Turn(role="user", content=f"What do you make of this alert?\n\n{PHISHING}"),)


def _follow_up() -> tuple[Turn, ...]:
    alert = "Triage: 198.51.100.24 scanned 300 ports of srv-web-02. Nothing followed the scan."
    return (
        Turn(role="user", content=alert),
        Turn(role="assistant", content=SCAN_VERDICT),
        Turn(role="user", content="What should I do first?"),
    )


def _prompt(name: str, shows: str, max_tokens: int, *turns: Turn) -> DemoPrompt:
    sampling = Sampling(temperature=0.0)
    return DemoPrompt(name, shows, Job(messages=list(turns), max_tokens=max_tokens, sampling=sampling))
