"""What a pass of the FP8 decoder is given: a few new tokens each, or chunks of prompts. Knows no layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyBatch:
    """S places of at most `width` rows each, T rows in all; all on the decoder's device.

    Shapes are those of one captured graph: a place may be unused, and rows past the last span are.
    """

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [3, T], time, height, width; text has three equal rows
    cells: Tensor  # int64 [T], page · page_tokens + place in the page; negative for an unused row
    span_starts: Tensor  # int64 [S+1], from 0 to at most T
    slots: Tensor  # int64 [S], all different; negative for an unused place, whose span is empty
    contexts: Tensor  # int64 [S], tokens of each sequence kept before this pass
    page_tables: Tensor  # int32 [S, max_pages]
    accepted: Tensor  # int64 [S], how many tokens of the slot's last span are kept, 0 after `read` or `fold`
    width: int  # 1 to 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Chunks of prompts cut into P runs of at most `width` rows, each with all before it as its context."""

    starts: Tensor  # int64 [P+1], rising; rows past the last run are unused
    contexts: Tensor  # int64 [P]
    page_tables: Tensor  # int32 [P, max_pages], of the sequence that a run belongs to
    width: int  # 1 to 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatch:
    """Chunks of S prompts, one after another, T rows; tensors on the decoder's device.

    Attention takes them as wholes, for which it must know their lengths, or as the `pieces` where those are
    given, which a captured graph can hold: right for short chunks, whose time is that of many launches. Then
    rows past the last span may be unused, as in a VerifyBatch, and `contexts` and `lengths` are unread.
    """

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [3, T]
    cells: Tensor  # int64 [T]
    span_starts: Tensor  # int64 [S+1], from 0 to T
    slots: Tensor  # int64 [S], all different
    page_tables: Tensor  # int32 [S, max_pages]
    logit_rows: Tensor  # int64 [R], rows of T whose logits are wanted
    contexts: tuple[int, ...]  # tokens of each sequence computed before
    lengths: tuple[int, ...]  # rows of each span
    pieces: Pieces | None = None
