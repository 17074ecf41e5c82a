"""The helpers stage: the trained model's own answers to an MTP draft head and a DFlash2 block draft model.

The model itself stays as it is. Both helpers learn what the model says next, from its own answers: most of
them its likeliest tokens, some drawn, so that the helpers also see where an answer can go otherwise.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from scripts.train_tiny.block_draft import BlockSizes
from scripts.train_tiny.checkpoint import load_weights
from scripts.train_tiny.dimensions import Dimensions
from scripts.train_tiny.helper_files import save_block_draft, save_head, write_helper_card
from scripts.train_tiny.helper_training import Helpers, HelperSettings
from scripts.train_tiny.model import TinyModel, set_weights
from scripts.train_tiny.questions import Questions, draw_questions, load_questions
from scripts.train_tiny.stepping import Answered, answer
from scripts.train_tiny.vocabulary import END_OF_TEXT, END_OF_TURN, token_id

_DRAWN_SHARE, _TEMPERATURE = 0.25, 0.7


def train_helpers(cache: Path, checkpoint: Path, block_folder: Path, settings: HelperSettings) -> None:
    """Write the head into `checkpoint` and the draft model to `block_folder`; a report goes to `cache`."""
    questions = _questions(cache, checkpoint, settings)
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    model = TinyModel(Dimensions(), torch.float32).to(device).requires_grad_(requires_grad=False)
    set_weights(model, load_weights(checkpoint))
    groups = _answered(model, questions, checkpoint, settings)
    answered_s = time.monotonic() - started
    print(f"{settings.chats:,} chats answered in {answered_s:.1f} s", flush=True)

    helpers = Helpers(model, groups, settings)
    head, head_curve = helpers.train_head()
    save_head(head, checkpoint)
    block, block_curve = helpers.train_block()
    save_block_draft(block, block_folder)
    report = {
        "settings": asdict(settings),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "answered_s": round(answered_s),
        "total_s": round(time.monotonic() - started),
        "head": head_curve,
        "block": block_curve,
    }
    (cache / "helpers.json").write_text(json.dumps(report, indent=2) + "\n")
    parameters = {name: _size(helper) for name, helper in (("head", head), ("block", block))}
    write_helper_card(report, block_folder, parameters=parameters)


def _size(helper: nn.Module) -> int:
    return sum(parameter.numel() for parameter in helper.parameters())


def _questions(cache: Path, checkpoint: Path, settings: HelperSettings) -> Questions:
    stored = cache / f"questions-{settings.chats}-{settings.seed}.npz"
    if not stored.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draw_questions(checkpoint, settings.chats, settings.seed).save(stored)
    return load_questions(stored)


def _answered(
    model: TinyModel, questions: Questions, checkpoint: Path, settings: HelperSettings
) -> list[Answered]:
    device = model.embed_tokens.weight.device
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ends = torch.tensor([token_id(tokenizer, name) for name in (END_OF_TURN, END_OF_TEXT)], device=device)
    groups: list[Answered] = []
    for start in range(0, settings.chats, settings.abreast):
        chosen = slice(start, start + settings.abreast)
        lengths = torch.from_numpy(questions.lengths[chosen].astype(np.int64)).to(device)
        prompts = torch.from_numpy(questions.tokens[chosen, : int(lengths.max())].astype(np.int64)).to(device)
        drawn = torch.rand(len(lengths), device=device) < _DRAWN_SHARE
        groups.append(
            answer(
                model,
                prompts,
                lengths,
                taps=BlockSizes().target_layer_ids,
                temperatures=drawn * _TEMPERATURE,
                ends=ends,
                max_tokens=settings.answer_tokens,
            )
        )
    return groups
