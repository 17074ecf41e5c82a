"""The transcription that DFlash2 drafts are tested against, against the package it was written from.

`pip install --no-deps dflash==0.1.0` makes it run: of what the package asks for, only torch and transformers
are needed for its model, and those are here.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config

from tests.model.checkpoint_files import Json
from tests.model.dflash_reference import DFlashReference
from tests.model.test_dflash import SHAPES

package: Any = pytest.importorskip("dflash.model", reason="the package dflash is not installed")


@pytest.mark.parametrize("rows", [2, 7, 16])
@pytest.mark.parametrize("name", SHAPES)
def test_it_drafts_what_the_package_does(name: str, rows: int) -> None:
    shape = SHAPES[name]
    reference = DFlashReference(shape)
    order = random.Random(rows)
    context = torch.randn(400, len(shape.target_layer_ids) * shape.hidden_size).double()
    drafts = _Package(reference)
    start, new = 0, 50
    while start + new < len(context):
        anchor = order.randrange(shape.vocab_size)
        wanted = drafts.draft(context[start : start + new], start, anchor, rows)
        start += new
        assert reference.draft(context[:start], anchor, rows) == wanted
        new = order.randint(1, rows)


class _Package:
    """The package's model with a reference's weights, fed as its generation loop does."""

    def __init__(self, reference: DFlashReference) -> None:
        self._reference = reference
        fields: Json = {**reference.shape.config_json(), "attn_implementation": "sdpa"}
        config = Qwen3Config(**fields)
        self._model = package.DFlash2DraftModel(config).double().eval()
        names = {name: f"{name}.weight" for name in reference.tensors if name.endswith("_codebook")}
        self._model.load_state_dict(
            {names.get(name, name): tensor.double() for name, tensor in reference.tensors.items()}
        )
        self._cache = package._make_cache(config)

    @torch.inference_mode()
    def draft(self, outputs: Tensor, start: int, anchor: int, rows: int) -> list[int]:
        """The draft behind `anchor` after the outputs of as many new tokens, the first at `start`."""
        end = start + len(outputs)
        ids = torch.tensor([anchor] + [self._model.mask_token_id] * (rows - 1))
        hidden = self._model(
            target_hidden=outputs[None],
            noise_embedding=self._reference.embedding.double()[ids][None],
            position_ids=torch.arange(start, end + rows)[None],
            past_key_values=self._cache,
            use_cache=True,
        )[:, 1 - rows :]
        package._crop_to(self._cache, end)
        path, _, _ = self._model.propose(hidden, torch.tensor([anchor]), self._logits, 0.0)
        tokens: list[int] = path[0].tolist()
        return tokens

    def _logits(self, x: Tensor) -> Tensor:
        return x @ self._reference.lm_head.double().T
