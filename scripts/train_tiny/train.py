"""The training stage: token arrays to weights. Needs a GPU to be quick; knows no registry.

Seeded. On a GPU two runs differ in the last digits, because sums there run in no fixed order.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from scripts.train_tiny.batches import LossWeights, Rows
from scripts.train_tiny.checkpoint import load_weights, save_weights
from scripts.train_tiny.data import load_tokens
from scripts.train_tiny.dimensions import Dimensions, write_configs
from scripts.train_tiny.model import TinyModel, checkpoint_weights, set_weights
from scripts.train_tiny.optimiser import Optimiser, schedule
from scripts.train_tiny.vocabulary import ADDED_TOKENS, END_OF_TEXT, save_tokenizer, token_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How long and how wide to train."""

    steps: int = 2600
    """Optimiser steps."""
    rows: int = 64
    """Rows a step."""
    length: int = 2048
    """Tokens a row."""
    seed: int = 20261129
    """Of the weights and of the rows' order."""
    evaluate_every: int = 200
    """Steps between two looks at the held-out rows."""
    log_every: int = 100
    """Steps between two lines of the log."""
    compile: bool = True
    """Whether to compile the layers; off for short trials on a CPU."""


class Trainer:
    """One training run."""

    def __init__(self, cache: Path, settings: TrainSettings) -> None:
        self._settings = settings
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings.seed)
        torch.set_float32_matmul_precision("high")
        self.tokenizer = Tokenizer.from_file(str(cache / "tokenizer.json"))
        end = token_id(self.tokenizer, END_OF_TEXT)
        self._texts = Rows(load_tokens(cache / "texts.u16.xz"), end, settings.length)
        self._chats = Rows(load_tokens(cache / "chats.u16.xz"), end, settings.length)
        self._weigh = LossWeights(
            {
                name: token_id(self.tokenizer, name)
                for name in ("<|im_start|>", "<|im_end|>", END_OF_TEXT, "assistant")
            }
        )
        self.sizes = Dimensions()
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self.model = TinyModel(self.sizes, dtype).to(self._device)
        self._loss = torch.compile(self._head_loss) if settings.compile else self._head_loss
        if settings.compile:
            for layer in self.model.layers:
                layer.compile()
        self.curve: list[dict[str, float]] = []
        self._logged = (0, time.monotonic())

    def run(self) -> None:
        """Train; the loss curve is in `curve` afterwards."""
        settings = self._settings
        optimiser = Optimiser(self.model)
        texts, chats = self._texts.endless(settings.seed), self._chats.endless(settings.seed + 1)
        self._logged = (0, time.monotonic())
        for step in range(settings.steps):
            # more chats towards the end, where the learning rate falls and the model settles
            share = 0.5 if step < 0.6 * settings.steps else 0.75
            num_chats = round(settings.rows * share)
            chat_rows = [next(chats) for _ in range(num_chats)]
            text_rows = [next(texts) for _ in range(settings.rows - num_chats)]
            tokens = torch.cat([self._rows(self._chats, chat_rows), self._rows(self._texts, text_rows)])
            total, weight = self._loss_sums(tokens)
            loss = total / weight
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimiser.step(schedule(step, settings.steps))
            if (step + 1) % settings.log_every == 0 or step < 3:
                self._log(step + 1, loss.item())
            if (step + 1) % settings.evaluate_every == 0 or step + 1 == settings.steps:
                self._record(step, loss.item())

    def held_out_losses(self) -> dict[str, float]:
        """Loss per counted token on held-out rows of texts and of chats."""
        losses: dict[str, float] = {}
        for name, rows in (("texts", self._texts), ("chats", self._chats)):
            # one batch of the training's shape, so that nothing is compiled anew
            tokens = self._rows(rows, rows.held_out[: self._settings.rows])
            with torch.no_grad():
                total, weight = self._loss_sums(tokens)
            losses[name] = (total / weight).item()
        return losses

    def _rows(self, rows: Rows, chosen: list[int]) -> Tensor:
        return torch.from_numpy(rows.take(chosen)).to(self._device, non_blocking=True)

    def _loss_sums(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss and weight, summed over the batch."""
        hidden = self.model(tokens[:, :-1])
        return self._loss(hidden, tokens[:, 1:], self._weigh(tokens))

    def _head_loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.logits(hidden).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (losses * weights.flatten()).sum(), weights.sum()

    def _log(self, done: int, loss: float) -> None:
        now = time.monotonic()
        before, then = self._logged
        rate = (done - before) * self._settings.rows * self._settings.length / (now - then)
        print(f"step {done} loss {loss:.4f}, {now - then:.1f} s, {rate:,.0f} tokens/s", flush=True)
        self._logged = (done, now)

    def _record(self, step: int, loss: float) -> None:
        tokens = (step + 1) * self._settings.rows * self._settings.length
        self.curve.append({"step": step + 1, "tokens": tokens, "train": loss, **self.held_out_losses()})
        print(json.dumps(self.curve[-1]), flush=True)


def export(trainer: Trainer, folder: Path) -> dict[str, dict[str, float]]:
    """Write the checkpoint to `folder`; returns the held-out losses before and after the rounding to FP8."""
    before = trainer.held_out_losses()
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(trainer.tokenizer, folder, trainer.sizes.max_position_embeddings)
    write_configs(
        trainer.sizes, folder, {name: token_id(trainer.tokenizer, name) for name, _ in ADDED_TOKENS}
    )
    save_weights(checkpoint_weights(trainer.model), trainer.sizes, folder)
    set_weights(trainer.model, load_weights(folder))
    return {"float32": before, "fp8": trainer.held_out_losses()}
