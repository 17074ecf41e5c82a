"""All of a pass of Qwen3.8-27B but attention, convolution and delta rule, as one CUDA graph.

64 layers of norms, quantisations and products and the greedy head, each kernel waiting for the one in front.
What the sequence kernels would give is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu_timing import READ_BYTES_PER_S, Figure, time_us
from bench.shapes_27b import EPS, HIDDEN, PRODUCTS, VALUE_HEADS, VOCABULARY, random_blocks
from sparkle.kernels.fp8_linear import fp8_linear, fp8_linear_parts
from sparkle.kernels.gate_up import gate_up_silu_quantise
from sparkle.kernels.lm_head import lm_head_greedy
from sparkle.kernels.norm_quant import add_rms_norm_quantise, gated_rms_norm_quantise
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows, quantise_rows

LAYERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one layer's products."""

    recurrent: bool
    mixer_in: Fp8Blocks
    mixer_out: Fp8Blocks
    gate_up: Fp8Blocks
    down: Fp8Blocks


class DensePass:
    """Random weights of the whole model, and a pass over them."""

    def __init__(self) -> None:
        self.layers = [self._layer(recurrent=index % 4 != 3) for index in range(LAYERS)]
        self.head = random_blocks(VOCABULARY, HIDDEN)
        self.norm = torch.randn(HIDDEN, dtype=torch.bfloat16, device="cuda") * 0.1
        self.lane = torch.randn(GROUP, device="cuda")
        weights = [w for layer in self.layers for w in self._weights(layer)]
        self.read_bytes = sum(w.values.numel() for w in [*weights, self.head])

    @staticmethod
    def _layer(*, recurrent: bool) -> Layer:
        mixer_in = random_blocks(*PRODUCTS["gdn_in" if recurrent else "attention_in"])
        out, gate_up, down = (random_blocks(*PRODUCTS[name]) for name in ("out", "gate_up", "down"))
        return Layer(recurrent=recurrent, mixer_in=mixer_in, mixer_out=out, gate_up=gate_up, down=down)

    @staticmethod
    def _weights(layer: Layer) -> list[Fp8Blocks]:
        return [layer.mixer_in, layer.mixer_out, layer.gate_up, layer.down]

    def run(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The greedy tokens int64 [M] of hidden bfloat16 [M, 5120], the mixers giving mixed [M, 48, 128]."""
        addend: Tensor | None = None
        for layer in self.layers:
            hidden, x = add_rms_norm_quantise(hidden, addend, self.norm, eps=EPS)
            x = self._mixer(layer, fp8_linear(x, layer.mixer_in), mixed)
            parts = fp8_linear_parts(x, layer.mixer_out)
            hidden, x = add_rms_norm_quantise(hidden, parts, self.norm, eps=EPS)
            addend = fp8_linear_parts(gate_up_silu_quantise(x, layer.gate_up), layer.down)
        _, x = add_rms_norm_quantise(hidden, addend, self.norm, eps=EPS)
        return lm_head_greedy(x, self.head, vocabulary=VOCABULARY)[0]

    def _mixer(self, layer: Layer, wide: Tensor, mixed: Tensor) -> Fp8Rows:
        rows, columns = wide.shape
        if not layer.recurrent:
            return quantise_rows(wide[:, : VALUE_HEADS * GROUP])
        gate = wide.as_strided((rows, VALUE_HEADS, GROUP), (columns, GROUP, 1), columns - VALUE_HEADS * GROUP)
        return gated_rms_norm_quantise(mixed, gate, self.lane, eps=EPS)


def dense_pass() -> Iterator[Figure]:
    """The pass with the rows of one sequence, and of several."""
    model = DensePass()
    floor_ms = model.read_bytes / READ_BYTES_PER_S * 1e3
    for rows in (1, 16, 64, 128):
        hidden = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
        mixed = torch.randn(rows, VALUE_HEADS, GROUP, dtype=torch.bfloat16, device="cuda")
        figure_us, (low_us, high_us) = _time_pass(model, hidden, mixed)
        yield Figure(
            case=f"dense_pass_{rows}",
            value=figure_us / 1e3,
            unit="ms",
            floor=floor_ms,
            spread=(low_us / 1e3, high_us / 1e3),
        )


def _time_pass(model: DensePass, hidden: Tensor, mixed: Tensor) -> tuple[float, tuple[float, float]]:
    return time_us(lambda _: model.run(hidden, mixed), 1)
