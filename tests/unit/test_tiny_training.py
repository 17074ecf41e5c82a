"""The training model computes what transformers computes, and the generator gives right answers."""

import json
from random import Random

import numpy as np
import pytest
import torch

from scripts.train_tiny.alerts import Verdict, draw_alert, kinds, write_alert
from scripts.train_tiny.answers import VERDICT_KEYS, compact, verdict_object
from scripts.train_tiny.batches import LossWeights, Rows
from scripts.train_tiny.checkpoint import dequantise, quantise
from scripts.train_tiny.delta import unit_lower_inverse
from scripts.train_tiny.dimensions import Dimensions, text_config
from scripts.train_tiny.model import TinyModel, checkpoint_parameters, checkpoint_weights
from tests.unit.tiny_reference import ReferenceModel

SIZES = Dimensions(vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=4)
END_OF_TEXT = 63


Pair = tuple[TinyModel, ReferenceModel]


@pytest.fixture(scope="module")
def pair() -> Pair:
    """The training model and transformers' with the same random weights, float32."""
    torch.manual_seed(5)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    ours = TinyModel(SIZES, torch.float32)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            # norms start at zero or one, where an error in them would not show
            if name.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return ours, ReferenceModel(text_config(SIZES, END_OF_TEXT), checkpoint_weights(ours))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 150])
def test_logits_agree_with_transformers(pair: Pair, length: int) -> None:
    ours, theirs = pair
    tokens = torch.randint(0, SIZES.vocab_size, (2, length))
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(tokens)), theirs.logits(tokens), rtol=1e-4, atol=1e-5)


def test_gradients_agree_with_transformers(pair: Pair) -> None:
    ours, theirs = pair
    tokens = torch.randint(0, SIZES.vocab_size, (1, 131))
    for logits in (ours.logits(ours(tokens[:, :-1])), theirs.logits(tokens[:, :-1])):
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]))
    expected = {name: parameter.grad for name, parameter in theirs.parameters()}
    for name, parameter in checkpoint_parameters(ours).items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


def test_inverse_is_exact_where_a_series_would_overflow() -> None:
    lower = torch.ones(2, 64, 64).tril(-1)
    expected = torch.eye(64) - torch.diag(torch.ones(63), -1)
    torch.testing.assert_close(unit_lower_inverse(lower), expected.expand(2, -1, -1))


def test_quantising_keeps_three_bits_of_mantissa() -> None:
    weight = torch.randn(256, 128, generator=torch.Generator().manual_seed(1))
    weight[:128] *= 100.0
    stored, scales = quantise(weight)
    assert (stored.dtype, scales.dtype, scales.shape) == (torch.float8_e4m3fn, torch.bfloat16, (2, 1))
    error = (dequantise(stored, scales) - weight).abs()
    # half a step of a 3-bit mantissa, or of the smallest subnormal under this block's scale
    bound = torch.maximum(weight.abs() * 2**-4, 2**-10 * scales.float().repeat_interleave(128, 0))
    assert bool((error <= bound * 1.01).all())


def test_rows_begin_at_documents_and_lose_none() -> None:
    documents = [[number] * (3 + number % 5) + [END_OF_TEXT] for number in range(1, 60)]
    tokens = np.array([token for document in documents for token in document], dtype=np.uint16)
    rows = Rows(tokens, END_OF_TEXT, 16)
    seen = {int(token) for token in rows.take(rows.training + rows.held_out).flatten()}
    assert seen >= set(range(1, 57))
    for first in rows.take(rows.training)[:, 0]:
        place = int(np.argmax(tokens == first))
        assert place == 0 or tokens[place - 1] == END_OF_TEXT


def test_answers_weigh_more_than_prompts() -> None:
    names = {"<|im_start|>": 1, "<|im_end|>": 2, "<|endoftext|>": 3, "assistant": 4}
    user, word = 5, 9
    tokens = torch.tensor([[word, 3, 1, user, word, 2, word, 1, 4, word, 2, word, 3, word]])
    expected = [1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 0.1, 1.0, 1.0]
    torch.testing.assert_close(LossWeights(names)(tokens), torch.tensor([expected]))


def test_every_kind_and_verdict_makes_a_whole_alert() -> None:
    rng = Random(3)
    for category in kinds():
        for verdict in Verdict:
            alert = draw_alert(rng, category, verdict)
            given = json.loads(compact(verdict_object(alert)))
            assert list(given) == list(VERDICT_KEYS)
            assert (given["verdict"], given["category"]) == (verdict.value, category)
            written = write_alert(rng, alert)
            assert "{" not in given["summary"] + "".join(given["actions"])
            # nothing in the answer is made up: what it names stands in the alert
            assert all(
                value in json.dumps(alert.fields, ensure_ascii=False) or value in written
                for value in given["indicators"]
            )


def test_alerts_are_the_same_for_the_same_seed() -> None:
    first, second = (write_alert(rng, draw_alert(rng)) for rng in (Random(8), Random(8)))
    assert first == second
