"""A verify pass of one shape: guess and check, draw and accept, on a GPU as a graph each. Knows no requests.

Inputs stay where they are; nothing but guesses, where the host asks for them, is read back before all of it
is done. Between the two, what shapes rule out is taken from the logits: the host makes their masks meanwhile.
Then the draft model follows, as a graph of its own, while the host reads what was drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkle.drafting.helper import Helper
from sparkle.engine.buckets import Bucket
from sparkle.engine.drawn_rows import NARROW, NONE_DRAWN, NOT_DRAWN, DrawnRows
from sparkle.engine.guesses import token_sources, with_guesses
from sparkle.engine.recorded import Recorded
from sparkle.engine.rows import Rows, rows_of
from sparkle.engine.shape_masks import RowMasks
from sparkle.engine.told import Told
from sparkle.engine.transfer import Pack, padded
from sparkle.kernels import ops
from sparkle.model.dflash_selector import Draws
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache


class Verifier(Protocol):
    """What a verify pass needs of a decoder."""

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> Tensor:
        """Logits float32 [T, vocab] of all rows; on a GPU without waiting for it."""
        ...


class DraftModel(Helper[VerifyBatch, VerifyBatch | PromptBatch], Protocol):
    """What passes need of a draft model beside the decoder; on a GPU nothing waits for it."""

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, as Verifier.verify, and the outputs for `follow`."""
        ...

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The decoder's logits of a prompt's pass, and the outputs for `follow`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What came of a pass, on the host."""

    tokens: list[int]
    """Of each row the token drawn behind it; anything where none is drawn."""

    token_ids: list[int]
    """The rows' own tokens, guesses filled in."""

    counts: list[int]
    """Of each span how many of its drawn tokens count."""


@dataclass(frozen=True, slots=True)
class _Computed:
    """What guessing and checking leave, on the device."""

    logits: Tensor
    token_ids: Tensor
    """int64 [T]: the rows' own tokens, guesses filled in."""

    outputs: Tensor | None
    """What the draft model follows."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What drawing leaves, on the device."""

    told: Tensor
    """int64: the numbers of Checked, one list behind the other."""

    following: Tensor | None = None
    kept: Tensor | None = None
    """See Helper.follow; None where nobody follows."""


class VerifyPass:
    """`fill`, `check`, perhaps `rule_out`, `draw`, `read`. The rest is of the last of these alone."""

    def __init__(
        self,
        decoder: Verifier,
        cache: Fp8Cache,
        bucket: Bucket,
        page_tables: Tensor,
        *,
        vocab_size: int,
        draws: bool,
        helper: DraftModel | None = None,
        pool: Any = None,
        warm: bool = False,
    ) -> None:
        """No place is used yet; tokens below `vocab_size` are drawn; `pool`, `warm` as `Recorded` takes them.

        page_tables int32 [slots, max_pages]: of each slot, as they are when the pass runs.

        Without `draws` nothing is drawn, and `read` tells of nothing. A `helper` follows, and guesses where
        `bucket` says so.
        """
        assert draws or helper is None, "what is followed is drawn"
        self.bucket = bucket
        self._decoder, self._cache, self._helper = decoder, cache, helper
        self._vocab_size = vocab_size
        device = cache.keys.device
        rows, places = bucket.rows, bucket.sequences
        guesses = bucket.width - 1
        self._numbers = Pack(
            (rows, 3 * rows, rows, places + 1, *[places] * 3, rows, rows, *[places] * 4),
            device,
            float_sizes=(*[rows] * len(NOT_DRAWN), places, places * guesses) if draws else (),
        )
        token_ids, positions, cells, span_starts, slots, contexts, accepted, *rest = self._numbers.parts
        self._following, self._sources, self._firsts, self._counts, self._certain, self._least = rest
        if draws:
            *columns, temperatures, chances = self._numbers.floats
            self._settings = ops.RowSettings.of(columns)
            self._draws = Draws(temperatures=temperatures, chances=chances.view(places, guesses))
        self.batch = VerifyBatch(
            token_ids=token_ids,
            positions=positions.view(3, rows),
            cells=cells,
            span_starts=span_starts,
            slots=slots,
            contexts=contexts,
            page_tables=page_tables.new_zeros(places, page_tables.shape[1]),
            accepted=accepted,
            width=bucket.width,
        )
        self._page_tables = page_tables
        self._draws_here = draws
        self._guessed = Told(device, in_graph=True)
        self.fill(rows_of((), page_tokens=cache.page_tokens), NONE_DRAWN, (), accepted=())
        self._checked = Recorded(self._check, device, pool=pool, warm=warm)
        # the two others are tried once before they are recorded, each with what the one before leaves
        tried = not warm and device.type == "cuda"
        if draws and tried:
            self._checked.replay()
        self._drawn = Recorded(self._draw, device, pool=pool, warm=warm) if draws else None
        if helper is not None and self._drawn is not None and tried:
            self._drawn.replay()
        self._followed = None if helper is None else Recorded(self._follow, device, pool=pool, warm=warm)
        self._told = Told(device)

    @property
    def logits(self) -> Tensor:
        """Float32 [T, vocab]; rows past the last span hold anything."""
        return self._checked.result.logits

    def fill(
        self,
        rows: Rows,
        drawn: DrawnRows,
        following: Sequence[int],
        *,
        accepted: Sequence[int],
        least: Sequence[int] = (),
    ) -> None:
        """These rows, and none in the other places.

        `following` of each row the token behind it, -1 for the one that is drawn; `accepted` of each span's
        slot; `least` of each span how many drawn tokens count at least, whatever they are.
        """
        count, places = self.bucket.rows, self.bucket.sequences
        # of each span the rows that stay whatever is drawn
        certain = [first - start for first, start in zip(drawn.firsts, rows.span_starts, strict=False)]
        self._numbers.fill(
            (
                padded(rows.token_ids, count, 0),
                padded(rows.positions, count, 0) * 3,
                padded(rows.cells, count, -1),
                padded(rows.span_starts, places + 1, rows.span_starts[-1]),
                padded(rows.slots, places, -1),
                padded(rows.contexts, places, 0),
                padded(accepted, places, 0),
                padded(following, count, 0),
                token_sources(rows.token_ids, rows.span_starts, self.bucket),
                padded(drawn.firsts, places, 0),
                padded(drawn.counts, places, 0),
                padded(certain, places, 0),
                padded(least, places, 0),
            ),
            self._floats(drawn) if self._draws_here else (),
        )

    def check(self) -> None:
        """Compute the logits of what was filled in."""
        self._checked.replay()

    def replay(self) -> None:
        """Check and draw with nothing between them."""
        self.check()
        self.draw()

    def rule_out(self, masks: RowMasks) -> None:
        """What these do not allow is not drawn; `masks` has a row for each of the pass."""
        ops.rule_out(self.logits[:, : self._vocab_size], masks.masks, masks.wait())

    def draw(self) -> None:
        """Draw behind the rows that were checked, and let the draft model follow what counts."""
        if self._drawn is not None:
            self._drawn.replay()
        self._told.mark()
        if self._followed is not None:
            self._followed.replay()

    def read(self) -> Checked:
        """Wait until tokens were drawn, and see what came of it."""
        rows = self.bucket.rows
        if self._drawn is None:
            return Checked(tokens=[], token_ids=[], counts=[0] * self.bucket.sequences)
        numbers = self._told.read(self._drawn.result.told)
        return Checked(tokens=numbers[:rows], token_ids=numbers[rows : 2 * rows], counts=numbers[2 * rows :])

    def forget(self) -> None:
        """Overwrite what was filled in, and let go of what was computed."""
        self._numbers.wipe()
        self._checked.forget()
        if self._drawn is not None:
            self._drawn.forget()

    def read_guesses(self) -> list[int]:
        """The rows' own tokens, guesses filled in; does not wait for their check."""
        return self._guessed.read(self._checked.result.token_ids)

    def follow(self, following: Tensor, kept: Tensor) -> None:
        """Let the draft model follow with other tokens; int64 [T], [S], see Helper.follow."""
        helper, outputs = self._helper, self._checked.result.outputs
        if helper is not None and outputs is not None:
            helper.follow(self.batch, outputs, following, contexts=self.batch.contexts, kept=kept)

    def _floats(self, drawn: DrawnRows) -> list[Sequence[float]]:
        count, places, guesses = self.bucket.rows, self.bucket.sequences, self.bucket.width - 1
        chances = [chance for row in drawn.draft_chances for chance in padded(row, guesses, 0)]
        columns = [
            padded(column, count, filler) for column, filler in zip(drawn.columns, NOT_DRAWN, strict=True)
        ]
        return [*columns, padded(drawn.draft_temperatures, places, 0), padded(chances, places * guesses, 0)]

    @torch.inference_mode()
    def _check(self) -> _Computed:
        batch, helper = self.batch, self._helper
        torch.index_select(self._page_tables, 0, batch.slots.clamp(min=0), out=batch.page_tables)
        if helper is not None and self.bucket.guesses:
            guesses = helper.propose(batch, count=batch.width - 1, draws=self._draws)
            token_ids = with_guesses(batch.token_ids, guesses, self._sources, vocab_size=self._vocab_size)
            batch = dataclasses.replace(batch, token_ids=token_ids)
            self._guessed.mark()
        outputs: Tensor | None = None
        if helper is None:
            logits = self._decoder.verify(batch, self._cache)
        else:
            logits, outputs = helper.verify(batch, self._cache)
        return _Computed(logits, batch.token_ids, outputs)

    @torch.inference_mode()
    def _draw(self) -> _Drawn:
        checked = self._checked.result
        tokens, counts = ops.draw_drafts(
            checked.logits[:, : self._vocab_size],
            self._settings,
            checked.token_ids,
            self._firsts,
            self._counts,
            width=self.bucket.width,
            most=min(NARROW, self._vocab_size),
        )
        counts = torch.maximum(counts, self._least)
        # not to pinned memory: what a capture used must not be freed while another is made
        told = torch.cat((tokens, checked.token_ids, counts))
        if self._helper is None:
            return _Drawn(told)
        return _Drawn(told, torch.where(self._following < 0, tokens, self._following), self._certain + counts)

    @torch.inference_mode()
    def _follow(self) -> None:
        assert self._drawn is not None, "what is followed is drawn"
        drawn = self._drawn.result
        assert drawn.following is not None
        assert drawn.kept is not None
        self.follow(drawn.following, drawn.kept)
