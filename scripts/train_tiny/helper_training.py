"""Teaches both helpers on the same answered chats. Knows nothing of files.

Every place of an answer may be an anchor, the last token known: of what follows it a helper guesses some.
Anchors go through the answers as passes do, each next one where the last one's guesses ended: drafts begin
behind what could not be guessed, where guessing is hardest.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_tiny.block_draft import BlockDraft, BlockSizes
from scripts.train_tiny.dimensions import Dimensions
from scripts.train_tiny.draft_head import DraftHead
from scripts.train_tiny.model import TinyModel
from scripts.train_tiny.optimiser import Optimiser, schedule
from scripts.train_tiny.replayed import Replayed
from scripts.train_tiny.stepping import Answered

_HELD_OUT_EVERY = 50
_ROW_FADE = 7.0
"""By so many rows of a block a row's weight in the loss falls to 1/e: a row counts only behind right ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSettings:
    """How much to train the helpers."""

    chats: int = 8192
    """Chats that the model answers."""
    abreast: int = 2048
    """Chats that it answers at once."""
    answer_tokens: int = 256
    """Longest answer."""
    rows: int = 64
    """Chats a step."""
    head_steps: int = 650
    """Optimiser steps of the MTP head."""
    head_anchors: int = 32
    """Places in a chat that a chain starts at, each step."""
    head_chain: int = 7
    """Guesses of a chain."""
    block_steps: int = 3050
    """Optimiser steps of the block draft model."""
    block_anchors: int = 16
    """Blocks in a chat, each step."""
    seed: int = 20261130
    """Of chats, weights and order."""
    log_every: int = 300
    """Steps between two looks at the held-out chats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """What a helper guessed behind A anchors of B chats: N tokens each."""

    loss: Tensor  # float32, one number
    right: Tensor  # bool [B, A, N]
    counted: Tensor  # bool [B, A, N]: there is such a token


Ask = Callable[[Answered, Tensor], Guesses]
"""Chats and anchors int64 [B, A] to guesses."""


class Helpers:
    """Both helpers' training; `groups` are chats that were answered abreast."""

    def __init__(self, model: TinyModel, groups: list[Answered], settings: HelperSettings) -> None:
        self._model = model
        self._groups = [_with_room(group) for group in groups]
        self._settings = settings
        self._device = model.embed_tokens.weight.device
        self._dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._rng = np.random.default_rng(settings.seed)

    def train_head(self) -> tuple[DraftHead, list[dict[str, float]]]:
        """The head, and how its loss and its kept tokens went."""
        head = DraftHead(Dimensions()).to(self._device)

        def ask(chats: Answered, anchors: Tensor) -> Guesses:
            return self._ask_head(head, chats, anchors)

        return head, self._train(head, ask, self._settings.head_steps, self._settings.head_anchors)

    def train_block(self) -> tuple[BlockDraft, list[dict[str, float]]]:
        """The block draft model, and how its loss and its kept tokens went."""
        taps = self._groups[len(self._groups) // 2].taps[:, :64].float()
        draft = BlockDraft(BlockSizes(), taps.square().mean((0, 1)).sqrt()).to(self._device)

        def ask(chats: Answered, anchors: Tensor) -> Guesses:
            return self._ask_block(draft, chats, anchors)

        return draft, self._train(draft, ask, self._settings.block_steps, self._settings.block_anchors)

    def _train(self, helper: nn.Module, ask: Ask, steps: int, anchors: int) -> list[dict[str, float]]:
        optimiser = Optimiser(helper)
        factor = torch.zeros((), device=self._device)
        rows = torch.zeros(self._settings.rows, dtype=torch.int64, device=self._device)

        def learn_from(group: Answered) -> Replayed:
            places = draw_anchors(group, anchors)

            def step() -> None:
                chats = _take(group, rows)
                guesses = ask(chats, places[rows])
                torch.autograd.backward(guesses.loss)
                torch.nn.utils.clip_grad_norm_(helper.parameters(), 1.0)
                optimiser.step(factor)
                places[rows] = next_anchors(chats, places[rows], guesses)

            return Replayed(step, self._device)

        learn = [learn_from(group) for group in self._groups]
        curve: list[dict[str, float]] = []
        started = time.monotonic()
        for step in range(steps):
            group = self._draw_group()
            rows.copy_(self._draw_rows(len(self._groups[group].lengths)))
            factor.fill_(schedule(step, steps))
            learn[group]()
            if (step + 1) % self._settings.log_every == 0 or step + 1 == steps:
                look = self._look(ask, anchors)
                curve.append({"step": step + 1, "seconds": round(time.monotonic() - started, 1), **look})
                print(type(helper).__name__, json.dumps(curve[-1]), flush=True)
        return curve

    @torch.no_grad()
    def _look(self, ask: Ask, anchors: int) -> dict[str, float]:
        """Loss, and tokens kept a pass if drafts began at any token of an answer, on held-out chats."""
        losses, kept = list[Tensor](), list[Tensor]()
        for group in self._groups:
            rows = torch.arange(0, len(group.lengths), _HELD_OUT_EVERY, device=self._device)
            chats = _take(group, rows)
            guesses = ask(chats, draw_anchors(chats, anchors))
            losses.append(guesses.loss)
            kept.append(_kept(guesses)[guesses.counted[..., 0]].float())
        loss, mean = torch.stack(losses).mean(), torch.cat(kept).mean()
        return {"loss": round(loss.item(), 4), "kept": round(mean.item(), 3)}

    def _draw_group(self) -> int:
        """One group, by the tokens of its answers."""
        sizes = np.array([float((group.lengths - group.prompts).sum()) for group in self._groups])
        return int(self._rng.choice(len(sizes), p=sizes / sizes.sum()))

    def _draw_rows(self, chats: int) -> Tensor:
        """A step's rows of a group of so many chats."""
        rows = self._rng.integers(0, chats, self._settings.rows)
        # what is held out gives its place to its neighbour
        rows += rows % _HELD_OUT_EVERY == 0
        return torch.from_numpy(rows.clip(max=chats - 1))

    def _ask_head(self, head: DraftHead, chats: Answered, anchors: Tensor) -> Guesses:
        steps = self._settings.head_chain
        hidden = self._model.norm(chats.taps[..., -self._model.embed_tokens.embedding_dim :]).to(self._dtype)
        embedded = self._model.embed_tokens(chats.tokens).to(self._dtype)
        # the row of the token before the anchor: it is given the anchor itself
        outputs = torch.stack(head(embedded, hidden, anchors - 1, steps=steps), dim=2)
        logits = self._model.lm_head(outputs).float()
        # what the model finds likeliest, also where another token was drawn
        rows = _behind(anchors, steps)
        chosen = hidden.gather(1, rows.flatten(1)[..., None].expand(-1, -1, hidden.shape[2]))
        wanted = self._model.lm_head(chosen).argmax(-1).view(rows.shape)
        counted = _in_answer(chats, anchors, steps)
        losses = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
        return Guesses(
            loss=(losses.view(wanted.shape) * counted).sum() / counted.sum(),
            right=logits.argmax(-1) == wanted,
            counted=counted,
        )

    def _ask_block(self, draft: BlockDraft, chats: Answered, anchors: Tensor) -> Guesses:
        rows = draft.sizes.block_size
        embedded = self._model.embed_tokens(chats.tokens).to(self._dtype)
        mask = self._model.embed_tokens.weight[draft.sizes.mask_token_id].to(self._dtype)
        x = draft(chats.taps.to(self._dtype), embedded, mask, anchors)
        places = _behind(anchors, rows)
        tokens = chats.tokens.gather(1, places.flatten(1)).view(places.shape)
        wanted, before = tokens[..., 1:], tokens[..., :-1]
        alone = self._model.lm_head(x)
        behind = alone + draft.candidate_selector(x, before)
        counted = _in_answer(chats, anchors, rows - 1)
        weights = counted * torch.exp(-torch.arange(rows - 1, device=self._device) / _ROW_FADE)
        # alone too, because the path is chosen among each row's likeliest tokens
        losses = torch.stack(
            [
                F.cross_entropy(scores.flatten(0, 2).float(), wanted.flatten(), reduction="none")
                for scores in (alone, behind)
            ]
        ).sum(0)
        return Guesses(
            loss=(losses.view(weights.shape) * weights).sum() / weights.sum(),
            right=behind.argmax(-1) == wanted,
            counted=counted,
        )


def draw_anchors(chats: Answered, count: int) -> Tensor:
    """Places of `count` tokens of each answer, all but its last: int64 [B, count]."""
    chance = torch.rand(len(chats.lengths), count, device=chats.lengths.device)
    choices = (chats.lengths - 1 - chats.prompts).clamp(min=1)
    return chats.prompts[:, None] + (chance * choices[:, None]).long()


def next_anchors(chats: Answered, anchors: Tensor, guesses: Guesses) -> Tensor:
    """Where the passes behind these ones begin, int64 [B, A]; anywhere in the answer where it is over."""
    reached = anchors + _kept(guesses)
    return torch.where(reached < chats.lengths[:, None] - 1, reached, draw_anchors(chats, anchors.shape[1]))


def _kept(guesses: Guesses) -> Tensor:
    """Tokens that passes keep, int64 [B, A]: the model's own comes on top of the right guesses in front."""
    return (guesses.right & guesses.counted).long().cumprod(-1).sum(-1) + 1


def _with_room(group: Answered) -> Answered:
    """The same chats with room for a draft behind the longest, of whole 64 tokens."""
    longest = group.tokens.shape[1]
    room = BlockSizes().block_size
    room += -(longest + room) % 64
    return replace(group, tokens=F.pad(group.tokens, (0, room)), taps=F.pad(group.taps, (0, 0, 0, room)))


def _take(group: Answered, rows: Tensor) -> Answered:
    """Some chats of a group."""
    return Answered(
        tokens=group.tokens[rows],
        prompts=group.prompts[rows],
        lengths=group.lengths[rows],
        taps=group.taps[rows],
    )


def _behind(anchors: Tensor, count: int) -> Tensor:
    """The `count` places from each anchor on, int64 [B, A, count]."""
    return anchors[..., None] + torch.arange(count, device=anchors.device)


def _in_answer(chats: Answered, anchors: Tensor, guesses: int) -> Tensor:
    """Which tokens behind the anchors the answers have, bool [B, A, guesses]."""
    return _behind(anchors + 1, guesses) < chats.lengths[:, None, None]
