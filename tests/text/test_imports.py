"""The text part stands without torch and without the queue, so that it can run and be tested anywhere."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "triton", "numpy", "nats")


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys, sparkle.text.prompt, sparkle.text.answer_text;"
        f"print([name for name in {HEAVY} if name in sys.modules], 'tokenizers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[] True\n"
