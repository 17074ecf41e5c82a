"""The right answers to questions about an alert, and the thoughts that lead there. Knows nothing of chats."""

import json
from random import Random

from scripts.train_tiny.alerts import Alert, Verdict, sentence

_JUDGEMENT = {
    Verdict.MALICIOUS: (
        "This looks like a real attack.",
        "This alert is a true positive.",
        "I rate this alert as malicious.",
    ),
    Verdict.SUSPICIOUS: (
        "This is suspicious, but not proven.",
        "I rate this alert as suspicious.",
        "This needs a closer look before it can be closed.",
    ),
    Verdict.BENIGN: (
        "This looks harmless.",
        "I rate this alert as benign.",
        "This is most likely a false positive.",
    ),
}

VERDICT_KEYS = ("verdict", "severity", "confidence", "category", "summary", "actions", "indicators")


def summary(alert: Alert) -> str:
    """What happened and the strongest sign, one sentence."""
    return sentence(f"{alert.event}; {alert.signs[0]}")


def verdict_object(alert: Alert, keys: tuple[str, ...] = VERDICT_KEYS) -> dict[str, object]:
    """The verdict as a JSON object with these keys of VERDICT_KEYS, in their order."""
    everything: dict[str, object] = {
        "verdict": alert.verdict.value,
        "severity": alert.severity,
        "confidence": alert.confidence,
        "category": alert.category,
        "summary": summary(alert),
        "actions": list(alert.actions),
        "indicators": list(alert.indicators),
    }
    return {key: everything[key] for key in keys}


def compact(value: object) -> str:
    """JSON without spaces, as the verdict is written."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def listed(clauses: tuple[str, ...]) -> str:
    """Clauses as one enumeration: `a, b and c`."""
    if len(clauses) == 1:
        return clauses[0]
    return f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def bullets(clauses: tuple[str, ...]) -> str:
    """Clauses as a numbered list, one a line."""
    return "\n".join(f"{number}. {sentence(clause)}" for number, clause in enumerate(clauses, 1))


def analysis(rng: Random, alert: Alert) -> str:
    """Verdict, what happened, why, what to do: three to five sentences."""
    why = f"{'Reasons' if len(alert.signs) > 1 else 'Reason'}: {listed(alert.signs)}."
    severity = f"Severity: {alert.severity}{', because the asset is critical' if _raised(alert) else ''}."
    steps = f"Next steps: {listed(tuple(_lowered(step) for step in alert.actions))}."
    parts = [rng.choice(_JUDGEMENT[alert.verdict]), sentence(alert.event), why, severity, steps]
    if rng.random() < 0.4:
        parts[-1] = f"\n\nNext steps:\n{bullets(alert.actions)}"
        return " ".join(parts[:-1]) + parts[-1]
    return " ".join(parts)


def short_answer(rng: Random, alert: Alert) -> str:
    """Yes, no or maybe, with the reason: two sentences."""
    opening = {Verdict.MALICIOUS: "Yes.", Verdict.SUSPICIOUS: "Maybe.", Verdict.BENIGN: "No."}[alert.verdict]
    return f"{opening} {rng.choice(_JUDGEMENT[alert.verdict])} {sentence(listed(alert.signs))}"


def severity_answer(alert: Alert) -> str:
    """The severity and its reason, one sentence."""
    because = f"{listed(alert.signs)}{' and the asset is critical' if _raised(alert) else ''}"
    return f"{alert.severity.capitalize()}, because {because}."


def note(rng: Random, alert: Alert) -> str:
    """A short message to a manager."""
    state = {
        Verdict.MALICIOUS: "We treat it as an attack and have started to respond.",
        Verdict.SUSPICIOUS: "We do not know yet whether it is an attack and are looking into it.",
        Verdict.BENIGN: "It is harmless and we close the alert.",
    }[alert.verdict]
    greeting = rng.choice(("Hello,", "Hi,", "Dear colleagues,"))
    told = f"{sentence(alert.event)} {state} Severity: {alert.severity}. Next: {_lowered(alert.actions[0])}."
    return f"{greeting}\n\n{told}\n\nThe security team"


def thoughts(rng: Random, alert: Alert, effort: str) -> str:
    """Reasoning that leads to the verdict; the longer, the higher the effort (low, medium, xhigh)."""
    if effort == "low":
        return f"{sentence(alert.signs[0])} So: {alert.verdict}, {alert.severity}."
    told = f"What happened: {alert.event}."
    if effort == "medium":
        why = sentence(listed(alert.signs))
        return f"{told} {why} That makes it {alert.verdict}, severity {alert.severity}."
    against = {
        Verdict.MALICIOUS: "A harmless cause is unlikely, because nothing in the alert explains this.",
        Verdict.SUSPICIOUS: "There may be a harmless cause, and the alert alone does not settle it.",
        Verdict.BENIGN: "An attack is unlikely, because there is a plain explanation.",
    }[alert.verdict]
    asset = (
        "The asset is critical, which raises the severity."
        if alert.critical
        else "Nothing says that the asset is critical."
    )
    lines = [told, "Signs:", *(f"- {sign}" for sign in alert.signs), against]
    if rng.random() < 0.5:
        lines.append(f"The kind of alert is {alert.category.replace('_', ' ')}.")
    return "\n".join(
        [
            *lines,
            asset,
            f"So the verdict is {alert.verdict} with severity {alert.severity}.",
            f"First step: {_lowered(alert.actions[0])}.",
        ]
    )


def _raised(alert: Alert) -> bool:
    return alert.critical and alert.verdict is not Verdict.BENIGN


def _lowered(step: str) -> str:
    return step[0].lower() + step[1:]
