"""`python -m scripts.train_tiny`: makes the bundled checkpoint anew, running the stages that are missing."""

import argparse
import json
import shutil
import time
from dataclasses import asdict, fields
from pathlib import Path

import torch
from tokenizers import Tokenizer

from scripts.train_tiny.card import write_card
from scripts.train_tiny.checkpoint import load_weights
from scripts.train_tiny.data import build_data
from scripts.train_tiny.dimensions import Dimensions
from scripts.train_tiny.evaluate import DEMO_PROMPTS, generate, score_foreign, score_verdicts
from scripts.train_tiny.helper_training import HelperSettings
from scripts.train_tiny.helpers import train_helpers
from scripts.train_tiny.model import TinyModel, set_weights
from scripts.train_tiny.render import load_template, render_prompt
from scripts.train_tiny.train import Trainer, TrainSettings, export

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "sparkle" / "checkpoints" / "sparkle-tiny"
BLOCK_DRAFT_SUFFIX = "-dflash2"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m scripts.train_tiny", description=__doc__)
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "train_tiny", help="data stage's files"
    )
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="checkpoint to write")
    parser.add_argument(
        "--only", choices=("data", "train", "helpers", "evaluate"), help="run this stage alone"
    )
    parser.add_argument("--no-compile", action="store_true", help="for short trials on a CPU")
    for field in fields(TrainSettings):
        if field.type is int:
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(flag, type=int, default=field.default, help="default: %(default)s")
    arguments = parser.parse_args()
    numbers = {
        field.name: getattr(arguments, field.name) for field in fields(TrainSettings) if field.type is int
    }
    settings = TrainSettings(**numbers, compile=not arguments.no_compile)

    if arguments.only == "data" or (
        arguments.only is None and not (arguments.cache / "manifest.json").exists()
    ):
        build_data(arguments.cache, CHECKPOINT, settings.seed)
    if arguments.only in (None, "train"):
        _train(arguments.cache, arguments.out, settings)
    if arguments.only in (None, "helpers"):
        train_helpers(arguments.cache, arguments.out, _block_folder(arguments.out), HelperSettings())
    if arguments.only == "evaluate":
        _evaluate(arguments.out, arguments.cache)


def _train(cache: Path, out: Path, settings: TrainSettings) -> None:
    trainer = Trainer(cache, settings)
    started = time.monotonic()
    trainer.run()
    trained_s = time.monotonic() - started
    losses = export(trainer, out)
    if out != CHECKPOINT:
        shutil.copy(CHECKPOINT / "chat_template.jinja", out)
    on_gpu = torch.cuda.is_available()
    report = {
        "settings": asdict(settings),
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "train_s": round(trained_s),
        "curve": trainer.curve,
        "losses": losses,
    }
    (cache / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    _evaluate(out, cache)
    write_card(cache, out)


def _block_folder(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}{BLOCK_DRAFT_SUFFIX}")


def _evaluate(checkpoint: Path, cache: Path) -> None:
    """Ask the checkpoint as it will be shipped: with its rounded weights."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TinyModel(Dimensions(), torch.float32).to(device)
    set_weights(model, load_weights(checkpoint))
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    template = load_template(checkpoint)
    prompts = [render_prompt(template, [{"role": "user", "content": text}]) for text in DEMO_PROMPTS]
    for prompt, answer in zip(DEMO_PROMPTS, generate(model, tokenizer, prompts, max_tokens=200), strict=True):
        print(f"--- {prompt}\n{answer}", flush=True)
    score, answers = score_verdicts(model, tokenizer, checkpoint, count=200)
    print(score, flush=True)
    right, count, foreign_answers = score_foreign(model, tokenizer, checkpoint)
    print(f"foreign alerts: {right} of {count} verdicts right", *foreign_answers, sep="\n", flush=True)
    report = {
        "score": asdict(score),
        "foreign": {"alerts": count, "right_verdict": right},
        "answers": answers,
        "foreign_answers": foreign_answers,
    }
    (cache / "score.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
