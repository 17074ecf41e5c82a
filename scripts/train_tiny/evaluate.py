"""Asks a trained model about alerts it has never seen, and counts the right answers."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from scripts.train_tiny.alerts import Alert, draw_alert, write_alert
from scripts.train_tiny.answers import verdict_object
from scripts.train_tiny.chats import phrases
from scripts.train_tiny.model import TinyModel
from scripts.train_tiny.render import load_template, render_prompt
from scripts.train_tiny.vocabulary import token_id

# far from every training seed
HELD_OUT_SEED = 977_000_001

DEMO_PROMPTS = (
    "Hello",
    "What can you do?",
    "Triage this alert:\n\n412 failed SSH logins for root on web-07 from 203.0.113.9, then one login worked.",
    'Return the verdict as JSON.\n\n{"rule":"Ransomware behaviour","host":"fin-ws-042","user":"anna.meyer",'
    '"process":"update.exe","files":18230,"extension":".locked","ransom_note":"found"}',
    "Is this a real attack? The firewall reports a scan of 1200 ports on web-01 (10.2.3.4) from 192.0.2.44. "
    "192.0.2.44 is our own vulnerability scanner.",
    "What is phishing?",
    "Write a poem about the sea.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Counts over held-out alerts, greedy answers, thinking off."""

    alerts: int
    parsed: int
    right_verdict: int
    right_severity: int
    right_category: int
    right_indicators: int
    exact: int


def held_out_questions(count: int) -> list[tuple[Alert, str]]:
    """Alerts and questions for a JSON verdict, drawn with a seed that no training chat has."""
    rng = Random(HELD_OUT_SEED)
    questions: list[tuple[Alert, str]] = []
    for _ in range(count):
        alert = draw_alert(rng)
        form = rng.choice(phrases()["ask"]["verdict"])
        questions.append((alert, form.replace("{alert}", write_alert(rng, alert))))
    return questions


def score_verdicts(
    model: TinyModel, tokenizer: Tokenizer, checkpoint: Path, count: int
) -> tuple[Score, list[str]]:
    """The score on `count` held-out alerts, and the answers."""
    template = load_template(checkpoint)
    questions = held_out_questions(count)
    prompts = [render_prompt(template, [{"role": "user", "content": asked}]) for _, asked in questions]
    answers = generate(model, tokenizer, prompts, max_tokens=220)
    counts = dict.fromkeys(Score.__dataclass_fields__, 0)
    for (alert, _), answer in zip(questions, answers, strict=True):
        counts["alerts"] += 1
        try:
            given = json.loads(answer)
        except ValueError:
            continue
        right = verdict_object(alert)
        if not isinstance(given, dict):
            continue
        counts["parsed"] += 1
        for key in ("verdict", "severity", "category", "indicators"):
            counts[f"right_{key}"] += given.get(key) == right[key]
        counts["exact"] += given == right
    return Score(**counts), answers


def score_foreign(model: TinyModel, tokenizer: Tokenizer, checkpoint: Path) -> tuple[int, int, list[str]]:
    """Right verdicts among the alerts of foreign_alerts.toml, how many there are, and the answers."""
    loaded = tomllib.loads(Path(__file__).with_name("foreign_alerts.toml").read_text())
    alerts: list[dict[str, str]] = loaded["alert"]
    template = load_template(checkpoint)
    asked = [f"Return the verdict as JSON.\n\n{alert['text']}" for alert in alerts]
    prompts = [render_prompt(template, [{"role": "user", "content": text}]) for text in asked]
    answers = generate(model, tokenizer, prompts, max_tokens=220)
    right = sum(
        f'"verdict":"{alert["verdict"]}"' in answer for alert, answer in zip(alerts, answers, strict=True)
    )
    return right, len(alerts), answers


@torch.no_grad()
def generate(model: TinyModel, tokenizer: Tokenizer, prompts: Sequence[str], max_tokens: int) -> list[str]:
    """Greedy answers. The whole text is read anew for each token: simple, and quick enough here."""
    device = model.embed_tokens.weight.device
    ends = torch.tensor(
        [token_id(tokenizer, name) for name in ("<|im_end|>", "<|endoftext|>")], device=device
    )
    encoded = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    lengths = torch.tensor([len(ids) for ids in encoded], device=device)
    width = int(lengths.max()) + max_tokens
    tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in encoded], device=device)
    rows = torch.arange(len(prompts), device=device)
    first = lengths.clone()
    running = torch.ones_like(lengths, dtype=torch.bool)
    for _ in range(max_tokens):
        # what lies right of a row's end cannot reach its last token
        hidden = model(tokens[:, : int(lengths.max())])
        chosen = model.logits(hidden[rows, lengths - 1]).argmax(-1)
        running &= ~torch.isin(chosen, ends)
        if not running.any():
            break
        tokens[rows[running], lengths[running]] = chosen[running]
        lengths += running
    return [
        tokenizer.decode(tokens[row, first[row] : lengths[row]].tolist(), skip_special_tokens=False)
        for row in range(len(prompts))
    ]
