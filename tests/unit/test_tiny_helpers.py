"""The helpers' training forms compute what the served ones do, and learn from the model's own answers."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from scripts.train_tiny.block_draft import BlockDraft, BlockSizes
from scripts.train_tiny.checkpoint import dequantise, is_fp8, quantise
from scripts.train_tiny.checkpoint import load_weights as load_trained
from scripts.train_tiny.dimensions import Dimensions
from scripts.train_tiny.draft_head import DraftHead
from scripts.train_tiny.helper_files import save_block_draft, save_head
from scripts.train_tiny.helper_training import Guesses, Helpers, HelperSettings, next_anchors
from scripts.train_tiny.model import TinyModel, set_weights
from scripts.train_tiny.questions import draw_questions, load_questions
from scripts.train_tiny.replayed import Replayed
from scripts.train_tiny.stepping import Answered, answer, draw_tokens
from scripts.train_tiny.vocabulary import token_id
from sparkle.model.config import read_config
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import load_dflash_weights
from sparkle.model.shapes import bundled_checkpoint
from sparkle.model.weights import load_weights
from tests.model.driver import CPU, batch_of
from tests.model.mtp_driver import MtpDriver


def disturbed(module: nn.Module, seed: int) -> None:
    """Norms and taps away from one and zero, where an error in them would not show; all as BF16 holds it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("norm.weight", "base_kernel", "successor_codebook")):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            # a factor is stored, and one less is trained
            offset = 1.0 if name.endswith("norm.weight") and isinstance(module, BlockDraft) else 0.0
            parameter.copy_((parameter + offset).to(torch.bfloat16).float() - offset)


@pytest.mark.parametrize("lengths", [(40, 3), (120, 33)], ids=["inside the window", "past the window"])
def test_a_block_drafts_what_the_served_model_drafts(tmp_path: Path, lengths: tuple[int, int]) -> None:
    torch.manual_seed(3)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    sizes = BlockSizes(sliding_window=32)
    spread = 2.0 ** torch.randint(-2, 6, (3 * sizes.hidden_size,))
    trained = BlockDraft(sizes, spread)
    disturbed(trained, 4)
    save_block_draft(trained, tmp_path)
    target = read_config(bundled_checkpoint())
    config = read_dflash_config(tmp_path, target)
    embedding = torch.randn(sizes.vocab_size, sizes.hidden_size)
    lm_head = torch.randn(sizes.vocab_size, sizes.hidden_size) * 0.2
    served = DFlash(config, load_dflash_weights(tmp_path, config, CPU), embedding=embedding, lm_head=lm_head)
    cache = DFlashCache(config, num_slots=1, device=CPU, dtype=torch.float32)

    tokens = torch.randint(0, 8000, (1, lengths[0] + 20))
    taps = torch.randn(1, lengths[0] + 20, 3 * sizes.hidden_size) * spread
    anchors = torch.tensor([lengths])
    with torch.no_grad():
        outputs = trained(taps, embedding[tokens], embedding[sizes.mask_token_id], anchors)
    for place, length in enumerate(lengths):
        cache.zero_slot(0)
        batch = ContextBatch(
            span_starts=torch.tensor([0, length]),
            slots=torch.tensor([0]),
            contexts=torch.tensor([0]),
            kept=torch.tensor([length]),
        )
        served.extend(taps[0, :length], batch, cache)
        anchor = tokens[:, length]
        drafted = served.propose(anchor, torch.tensor([0]), torch.tensor([length]), cache, rows=16)
        wanted = chosen(trained, outputs[0, place], lm_head, int(anchor))
        assert whole(drafted[0]) == wanted


def chosen(draft: BlockDraft, outputs: Tensor, lm_head: Tensor, anchor: int) -> list[int]:
    """The path among the likeliest tokens of each row, by the training form's scores."""
    path = [anchor]
    for row in outputs:
        alone = F.linear(row, lm_head)
        scores = alone + draft.candidate_selector(row, torch.tensor(path[-1]))
        likeliest = alone.topk(draft.sizes.selector_top_k).indices
        path.append(int(likeliest[scores[likeliest].argmax()]))
    return path[1:]


def test_a_chain_drafts_what_the_served_head_drafts(tmp_path: Path) -> None:
    torch.manual_seed(5)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    trained = DraftHead(Dimensions())
    disturbed(trained, 6)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if is_fp8(name):
                parameter.copy_(dequantise(*quantise(parameter)))
    shutil.copytree(bundled_checkpoint(), tmp_path / "tiny")
    save_head(trained, tmp_path / "tiny")
    config = replace(read_config(tmp_path / "tiny"), has_mtp=True)
    weights, _ = load_weights(tmp_path / "tiny", config, device=CPU, dtype=torch.float32)
    driver = MtpDriver(config, weights)

    prompt, count = whole(torch.randint(0, 8000, (40,))), 5
    start, outputs = driver.read((driver.start(), prompt))
    (drafted,) = driver.draft(start, count)
    tokens = torch.tensor([[*prompt, *drafted, 0]])
    reading = driver.start()
    reading.pages = [driver.free_pages.pop() for _ in range(3)]
    batch = batch_of([(reading, whole(tokens[0]))])
    _, hidden = driver.decoder.forward_with_hidden(batch, driver.cache)
    with torch.no_grad():
        chain = trained(
            F.embedding(tokens, weights.embedding), hidden[None], torch.tensor([[38, 20]]), steps=count
        )
    torch.testing.assert_close(chain[0][0], outputs[0][[38, 20]], rtol=1e-4, atol=1e-4)
    likeliest = [int(F.linear(step[0, 0], weights.lm_head).argmax()) for step in chain]
    assert likeliest == drafted


def test_answers_are_the_models_likeliest_tokens_and_end_where_it_ends_them() -> None:
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    sizes = Dimensions(vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=4)
    model = TinyModel(sizes, torch.float32)
    lengths, ends = torch.tensor([5, 70, 1, 30]), [63, 20]
    prompts = torch.randint(0, 63, (4, 70))
    told = answer(
        model,
        prompts,
        lengths,
        taps=(0, 3),
        temperatures=torch.zeros(4),
        ends=torch.tensor(ends),
        max_tokens=40,
    )
    over = 0
    for row in range(4):
        first, last = int(lengths[row]), int(told.lengths[row])
        tokens = whole(told.tokens[row, :last])
        assert tokens[:first] == whole(prompts[row, :first])
        with torch.no_grad():
            hidden = model(told.tokens[row : row + 1, :last])[0]
            assert whole(model.logits(hidden)[first - 1 : -1].argmax(-1)) == tokens[first:]
        tapped = told.taps[row, : last - 1, sizes.hidden_size :].float()
        torch.testing.assert_close(tapped, hidden[:-1], rtol=1e-2, atol=1e-2)
        assert not set(tokens[first:-1]) & set(ends)
        assert tokens[-1] in ends or last == first + 40
        over += last < first + 40
    assert 0 < over < 4


def test_a_drawn_answer_is_drawn_from_the_temperatures_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(40_000, -1)
    torch.manual_seed(8)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    for temperature in (0.0, 0.7):
        drawn = draw_tokens(logits, torch.full((40_000,), temperature))
        shares = torch.bincount(drawn, minlength=4) / 40_000
        wanted = F.one_hot(torch.tensor(0), 4).float() if temperature == 0 else (logits[0] / 0.7).softmax(0)
        torch.testing.assert_close(shares, wanted, rtol=0, atol=0.01)


def test_questions_end_where_an_answer_begins(tmp_path: Path) -> None:
    drawn, again = (draw_questions(bundled_checkpoint(), 30, seed=2) for _ in range(2))
    assert (drawn.tokens == again.tokens).all()
    drawn.save(tmp_path / "questions.npz")
    stored = load_questions(tmp_path / "questions.npz")
    assert (stored.tokens == drawn.tokens).all()
    tokenizer = Tokenizer.from_file(str(bundled_checkpoint() / "tokenizer.json"))
    turn, end, think = (token_id(tokenizer, name) for name in ("<|im_start|>", "<|im_end|>", "<think>"))
    for row, length in zip(stored.tokens.tolist(), stored.lengths.tolist(), strict=True):
        last = max(place for place, token in enumerate(row) if token == turn)
        assert last < length
        assert end not in row[last:length]
        assert think in row[last:length]
        assert set(row[length:]) <= {0}


def test_both_helpers_learn_what_the_bundled_model_says() -> None:
    torch.manual_seed(9)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    model = TinyModel(Dimensions(), torch.float32).requires_grad_(requires_grad=False)
    set_weights(model, load_trained(bundled_checkpoint()))
    questions = draw_questions(bundled_checkpoint(), 8, seed=3)
    chats = answer(
        model,
        torch.tensor(questions.tokens[:, :90].tolist()),
        torch.tensor(questions.lengths.clip(max=90).tolist()),
        taps=BlockSizes().target_layer_ids,
        temperatures=torch.zeros(8),
        ends=torch.tensor([8191]),
        max_tokens=24,
    )
    settings = HelperSettings(
        rows=2, head_steps=6, head_anchors=6, head_chain=2, block_steps=6, block_anchors=6
    )
    helpers = Helpers(model, [chats], settings)
    # what one guess costs that knows nothing; a block is asked for each token twice
    blind = math.log(Dimensions().vocab_size)
    assert helpers.train_head()[1][-1]["loss"] < 0.95 * blind
    assert helpers.train_block()[1][-1]["loss"] < 0.95 * 2 * blind


def test_anchors_go_on_where_the_guesses_ended() -> None:
    torch.manual_seed(10)  # pyright: ignore[reportUnknownMemberType]  (torch leaves it half typed)
    chats = Answered(
        tokens=torch.zeros(1, 40, dtype=torch.int64),
        prompts=torch.tensor([10]),
        lengths=torch.tensor([30]),
        taps=torch.zeros(1, 40, 1),
    )
    right = torch.tensor([[[True, True, False], [False, True, True], [True, True, True], [True, True, True]]])
    counted = torch.tensor([[[True] * 3, [True] * 3, [True] * 3, [True, False, False]]])
    guesses = Guesses(loss=torch.tensor(0.0), right=right, counted=counted)
    found = whole(next_anchors(chats, torch.tensor([[12, 12, 12, 28]]), guesses)[0])
    # two right and the model's own; its own alone; all and its own; the answer is over, so anywhere in it
    assert found[:3] == [15, 13, 16]
    assert found[3] in range(10, 29)


def test_on_a_cpu_a_step_is_run_each_time() -> None:
    calls: list[int] = []
    step = Replayed(lambda: calls.append(len(calls)), torch.device("cpu"))
    for _ in range(3):
        step()
    assert calls == [0, 1, 2]


def whole(values: Tensor) -> list[int]:
    return [int(value) for value in values]
