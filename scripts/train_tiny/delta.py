"""The gated delta rule over whole sequences in chunks of 64, made for training on matrix units.

State S [key, value] of a head, per token: S <- a S; S <- S + k (b (v - S^T k))^T; o = S^T q, where a is the
decay and b the strength. Within a chunk this is a unit lower triangular system; from chunk to chunk it is an
affine map of the state, S' = P S + R, so that only one small product a chunk is sequential.
Reference for the chunk form: Yang et al., "Gated Delta Networks" (2024), section 3.
"""

import torch
from torch import Tensor

CHUNK = 64
_BASE = 16


@torch.library.custom_op("tiny::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(lower: Tensor) -> Tensor:
    """(I + lower)^-1 of strictly lower triangular float32 matrices [M, 64, 64].

    Diagonal blocks of 16 by the finite Neumann series in product form, then pairs of blocks are merged. The
    series alone would lose all digits at 64: its terms grow like binomial coefficients.
    """
    # these products need full float32: tf32 would leave too few digits for the series
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        blocks = _diagonal_blocks(lower, _BASE)
        inverse = torch.eye(_BASE, dtype=lower.dtype, device=lower.device) - blocks
        power = blocks
        for _ in range(3):
            power = torch.bmm(power, power)
            inverse = torch.baddbmm(inverse, inverse, power)
        size = _BASE
        while size < lower.shape[-1]:
            first, second = inverse.reshape(-1, 2, size, size).unbind(1)
            below = _diagonal_blocks(lower, 2 * size)[:, size:, :size]
            merged = lower.new_zeros(first.shape[0], 2 * size, 2 * size)
            merged[:, :size, :size] = first
            merged[:, size:, size:] = second
            merged[:, size:, :size] = -torch.bmm(second, torch.bmm(below, first))
            inverse, size = merged, 2 * size
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return inverse


def _diagonal_blocks(matrix: Tensor, size: int) -> Tensor:
    """The diagonal blocks [M * 64 / size, size, size] of matrices [M, 64, 64], contiguous."""
    count = matrix.shape[-1] // size
    blocks = matrix.reshape(-1, count, size, count, size).diagonal(dim1=1, dim2=3)
    return blocks.permute(0, 3, 1, 2).reshape(-1, size, size)


@unit_lower_inverse.register_fake
def _(lower: Tensor) -> Tensor:
    return torch.empty_like(lower)


def _inverse_backward(context: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
    (inverse,) = context.saved_tensors  # type: ignore[attr-defined]  # half typed
    transposed = inverse.transpose(-1, -2)
    return -torch.bmm(transposed, torch.bmm(grad, transposed)).tril(-1)


def _inverse_saved(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


unit_lower_inverse.register_autograd(_inverse_backward, setup_context=_inverse_saved)


@torch.library.custom_op("tiny::scan_states", mutates_args=())
def scan_states(transition: Tensor, added: Tensor) -> Tensor:
    """States at the start of each chunk: S[0] = 0, S[n + 1] = transition[n] S[n] + added[n].

    All float32 [N, M, 128, 128], chunks first.
    """
    states = torch.empty_like(added)
    states[0].zero_()
    for chunk in range(added.shape[0] - 1):
        torch.baddbmm(added[chunk], transition[chunk], states[chunk], out=states[chunk + 1])
    return states


@scan_states.register_fake
def _(transition: Tensor, added: Tensor) -> Tensor:
    return torch.empty_like(added)


@torch.library.custom_op("tiny::scan_states_backward", mutates_args=())
def scan_states_backward(grad: Tensor, transition: Tensor) -> Tensor:
    """Gradient of `added`: D[N - 1] = 0, D[n - 1] = grad[n] + transition[n]^T D[n]."""
    carried = torch.empty_like(grad)
    carried[-1].zero_()
    for chunk in range(grad.shape[0] - 1, 0, -1):
        torch.baddbmm(
            grad[chunk], transition[chunk].transpose(-1, -2), carried[chunk], out=carried[chunk - 1]
        )
    return carried


@scan_states_backward.register_fake
def _(grad: Tensor, transition: Tensor) -> Tensor:
    return torch.empty_like(grad)


def _scan_backward(context: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
    transition, states = context.saved_tensors  # type: ignore[attr-defined]  # half typed
    carried = scan_states_backward(grad.contiguous(), transition)
    return torch.matmul(carried, states.transpose(-1, -2)), carried


def _scan_saved(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor
) -> None:
    ctx.save_for_backward(inputs[0], output)


scan_states.register_autograd(_scan_backward, setup_context=_scan_saved)


def chunked_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, strength: Tensor
) -> Tensor:
    """Outputs [B, T, H, D] of the gated delta rule from a zero state; T is a multiple of 64.

    query, key [B, T, K, D] (normalised, query scaled), value [B, T, H, D], log_decay and strength float32
    [B, T, H]; key head h // (H / K) serves value head h. Products run in value's dtype, the state in float32.
    """
    batch, tokens, key_heads, width = key.shape
    group = value.shape[2] // key_heads
    chunks = tokens // CHUNK
    dtype = value.dtype

    def by_chunk(x: Tensor, heads: tuple[int, int]) -> Tensor:
        # chunks first, because the scan runs over them: [N, B, K, G, 64, ...]
        x = x.reshape(batch, chunks, CHUNK, *heads, *x.shape[3:])
        return x.permute(1, 0, 3, 4, 2, *range(5, x.dim()))

    query, key = by_chunk(query, (key_heads, 1)), by_chunk(key, (key_heads, 1))
    value = by_chunk(value, (key_heads, group))
    strength = by_chunk(strength, (key_heads, group))[..., None]
    total = by_chunk(log_decay, (key_heads, group)).cumsum(-1)[..., None]
    last = total[..., -1:, :]

    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=value.device).tril()
    between = (total - total.transpose(-1, -2)).masked_fill(~causal, float("-inf")).exp()
    overlap = torch.matmul(key, key.transpose(-1, -2)).float()
    system = (strength * overlap * between).tril(-1)
    inverse = unit_lower_inverse(system.reshape(-1, CHUNK, CHUNK)).reshape(system.shape).to(dtype)

    new_value = torch.matmul(inverse, (strength * value).to(dtype))
    read_key = torch.matmul(inverse, (strength * total.exp() * key).to(dtype))
    late_key = ((last - total).exp() * key).to(dtype).transpose(-1, -2)

    keep = torch.eye(width, dtype=torch.float32, device=value.device) * last.exp()
    transition = keep - torch.matmul(late_key, read_key).float()
    added = torch.matmul(late_key, new_value).float()
    flat = (chunks, -1, width, width)
    states = scan_states(transition.reshape(flat), added.reshape(flat)).reshape(added.shape).to(dtype)

    new_value = new_value - torch.matmul(read_key, states)
    inside = (torch.matmul(query, key.transpose(-1, -2)).float() * between).to(dtype)
    output = torch.matmul((total.exp() * query).to(dtype), states) + torch.matmul(inside, new_value)
    return output.permute(1, 0, 4, 2, 3, 5).reshape(batch, tokens, -1, width)
