"""transformers' model with given weights in float32, behind the few calls that the tiny model's tests use."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, cast

from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig


class _Output(Protocol):
    logits: Tensor


class ReferenceModel:
    """A model of a `text_config` block; `weights` carry the checkpoint's names, none lacking or left over."""

    def __init__(self, text_config: Mapping[str, object], weights: Mapping[str, Tensor]) -> None:
        make_config = cast(Callable[..., Qwen3_5TextConfig], Qwen3_5TextConfig)
        make_model = cast(Callable[[Qwen3_5TextConfig], nn.Module], Qwen3_5ForCausalLM)
        self._model = make_model(make_config(**text_config)).float().eval()
        renamed = {
            name.replace("model.language_model.", "model."): tensor for name, tensor in weights.items()
        }
        self._model.load_state_dict(renamed, strict=True)

    def logits(self, tokens: Tensor) -> Tensor:
        """Float32 [B, T, vocab] for int64 [B, T]."""
        output = cast(_Output, self._model(tokens))
        return output.logits

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Parameters under the checkpoint's names."""
        for name, parameter in self._model.named_parameters():
            yield name if name.startswith("lm_head.") else f"model.language_model.{name[6:]}", parameter
