"""The bundled checkpoint: complete, in the real model's form, and small enough for the repository."""

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from scripts.train_tiny.checkpoint import load_weights
from tests.unit.tiny_reference import ReferenceModel

CHECKPOINT = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
BLOCK_DRAFT = CHECKPOINT.with_name("sparkle-tiny-dflash2")

MAX_BYTES = 20_000_000
"""Of the model with its tokenizer, without helpers."""
MAX_HELPER_BYTES = 8_000_000
"""Of the draft head's shard, the draft model's directory and the index of the shards together."""
FIRST_ADDED_ID = 8159

# the real model's names in its order; those marked False stay visible when special tokens are skipped
ADDED = {
    "<|endoftext|>": True,
    "<|im_start|>": True,
    "<|im_end|>": True,
    "<|object_ref_start|>": True,
    "<|object_ref_end|>": True,
    "<|box_start|>": True,
    "<|box_end|>": True,
    "<|quad_start|>": True,
    "<|quad_end|>": True,
    "<|vision_start|>": True,
    "<|vision_end|>": True,
    "<|vision_pad|>": True,
    "<|image_pad|>": True,
    "<|video_pad|>": True,
    "<tool_call>": False,
    "</tool_call>": False,
    "<|fim_prefix|>": False,
    "<|fim_middle|>": False,
    "<|fim_suffix|>": False,
    "<|fim_pad|>": False,
    "<|repo_name|>": False,
    "<|file_sep|>": False,
    "<tool_response>": False,
    "</tool_response>": False,
    "<think>": False,
    "</think>": False,
    "<|audio_start|>": True,
    "<|audio_end|>": True,
    "<tts_pad>": True,
    "<tts_text_bos>": True,
    "<tts_text_eod>": True,
    "<tts_text_bos_single>": True,
    "<|audio_pad|>": True,
}

TRICKY_TEXTS = [
    "",
    " ",
    "\n\n \t\r\n  x",
    "naïve café — “quoted”…",
    "日本語と한국어 и русский, हिन्दी, ไทย, العربية",
    "👩‍👩‍👧‍👦🏳️‍🌈 flags 🇩🇪🇯🇵",
    "Z̷̡a̸l̵g̶o̷",
    '{"ip":"192.0.2.7","ports":[22,443],"note":"a\\"b\\\\c"}',
    "192.0.2.255 2001:db8::1 10.0.0.1/8",
    "I'll we've DON'T they're",
    "def f(x):\n\treturn x  # 123456789\n",
    "\x00\x01\x7f\u200b\ufeff",
    "<|im_start|>user\nhi<|im_end|>\n<think>\n\n</think>\n\n<tool_call>",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@pytest.fixture(scope="module")
def text_config() -> dict[str, int]:
    described: dict[str, int] = json.loads((CHECKPOINT / "config.json").read_text())["text_config"]
    return described


def test_the_model_stays_under_twenty_megabytes_and_its_helpers_under_eight() -> None:
    head = {CHECKPOINT / "mtp.safetensors", CHECKPOINT / "model.safetensors.index.json"}
    helpers = {*head, *BLOCK_DRAFT.iterdir()}
    assert sum(path.stat().st_size for path in helpers) <= MAX_HELPER_BYTES
    assert sum(path.stat().st_size for path in {*CHECKPOINT.iterdir()} - head) <= MAX_BYTES


def test_added_tokens_end_the_vocabulary_with_the_right_flags(tokenizer: Tokenizer) -> None:
    added = tokenizer.get_added_tokens_decoder()
    assert list(added) == list(range(FIRST_ADDED_ID, FIRST_ADDED_ID + len(ADDED)))
    assert {token.content: token.special for token in added.values()} == ADDED
    assert tokenizer.get_vocab_size() == 8192


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_tokenizer_returns_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tokenizer_normalises_and_splits_as_the_real_model(tokenizer: Tokenizer) -> None:
    composed = tokenizer.encode("é", add_special_tokens=False).ids
    assert tokenizer.encode("e\u0301", add_special_tokens=False).ids == composed
    digits = tokenizer.encode("2026", add_special_tokens=False).tokens
    assert digits == ["2", "0", "2", "6"]


def test_pretokenize_regex_is_told_twice_alike(tokenizer: Tokenizer) -> None:
    described = json.loads((CHECKPOINT / "tokenizer_config.json").read_text())["pretokenize_regex"]
    pipeline = json.loads(tokenizer.to_str())["pre_tokenizer"]["pretokenizers"]
    assert pipeline[0]["pattern"]["Regex"] == described


def test_generation_ends_on_both_end_tokens(tokenizer: Tokenizer) -> None:
    generation = json.loads((CHECKPOINT / "generation_config.json").read_text())
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    assert generation["eos_token_id"] == ends


def expected_tensors(config: dict[str, int], layer_types: list[str]) -> dict[str, tuple[str, list[int]]]:
    """Name to (dtype, shape) of every tensor that a checkpoint with this config must hold."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    value_heads = config["linear_num_value_heads"]
    value = value_heads * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + value
    fp8_full = {"q_proj": (2 * query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden)}
    fp8_full["o_proj"] = (hidden, query)
    fp8_linear = {
        "in_proj_qkv": (channels, hidden),
        "in_proj_z": (value, hidden),
        "out_proj": (hidden, value),
    }
    fp8_mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}

    tensors: dict[str, tuple[str, list[int]]] = {
        "lm_head.weight": ("BF16", [config["vocab_size"], hidden]),
        "model.language_model.embed_tokens.weight": ("BF16", [config["vocab_size"], hidden]),
        "model.language_model.norm.weight": ("BF16", [hidden]),
    }

    def add_fp8(prefix: str, matrices: dict[str, tuple[int, int]]) -> None:
        for name, (rows, columns) in matrices.items():
            tensors[f"{prefix}.{name}.weight"] = ("F8_E4M3", [rows, columns])
            scales = [math.ceil(rows / 128), math.ceil(columns / 128)]
            tensors[f"{prefix}.{name}.weight_scale_inv"] = ("BF16", scales)

    def add_full(layer: str) -> None:
        add_fp8(f"{layer}.self_attn", fp8_full)
        tensors[f"{layer}.self_attn.q_norm.weight"] = ("BF16", [head])
        tensors[f"{layer}.self_attn.k_norm.weight"] = ("BF16", [head])

    def add_mlp(layer: str) -> None:
        add_fp8(f"{layer}.mlp", fp8_mlp)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = ("BF16", [hidden])

    tensors["mtp.fc.weight"] = ("BF16", [hidden, 2 * hidden])
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{norm}.weight"] = ("BF16", [hidden])
    add_full("mtp.layers.0")
    add_mlp("mtp.layers.0")
    for number, kind in enumerate(layer_types):
        layer = f"model.language_model.layers.{number}"
        add_mlp(layer)
        if kind == "full_attention":
            add_full(layer)
            continue
        mixer = f"{layer}.linear_attn"
        add_fp8(mixer, fp8_linear)
        tensors[f"{mixer}.in_proj_a.weight"] = ("BF16", [value_heads, hidden])
        tensors[f"{mixer}.in_proj_b.weight"] = ("BF16", [value_heads, hidden])
        tensors[f"{mixer}.conv1d.weight"] = ("BF16", [channels, 1, config["linear_conv_kernel_dim"]])
        tensors[f"{mixer}.A_log"] = ("F32", [value_heads])
        tensors[f"{mixer}.dt_bias"] = ("BF16", [value_heads])
        tensors[f"{mixer}.norm.weight"] = ("F32", [config["linear_value_head_dim"]])
    return tensors


def test_tensors_are_exactly_those_of_the_config(text_config: dict[str, int]) -> None:
    layer_types: list[str] = json.loads((CHECKPOINT / "config.json").read_text())["text_config"][
        "layer_types"
    ]
    stored = {**tensors_of(CHECKPOINT / "model.safetensors"), **tensors_of(CHECKPOINT / "mtp.safetensors")}
    assert stored == expected_tensors(text_config, layer_types)


def test_the_index_tells_where_each_tensor_is_and_how_large_all_are() -> None:
    index = json.loads((CHECKPOINT / "model.safetensors.index.json").read_text())
    shards = ("model.safetensors", "mtp.safetensors")
    assert index["weight_map"] == {name: file for file in shards for name in tensors_of(CHECKPOINT / file)}
    widths = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
    told = [one for file in shards for one in tensors_of(CHECKPOINT / file).values()]
    assert index["metadata"]["total_size"] == sum(widths[kind] * math.prod(shape) for kind, shape in told)


def tensors_of(file: Path) -> dict[str, tuple[str, list[int]]]:
    """Name to (dtype, shape) of each tensor in a safetensors file."""
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {name: (told["dtype"], told["shape"]) for name, told in header.items() if name != "__metadata__"}


QUESTION = """Return the verdict as JSON.

{"rule":"Ransomware behaviour","host":"fin-ws-042","user":"anna.meyer","process":"update.exe","files":18230,\
"extension":".locked","ransom_note":"found"}"""

ANSWER = """{"verdict":"malicious","severity":"critical","confidence":0.8,"category":"ransomware",\
"summary":"update.exe on fin-ws-042 renamed 18230 files to .locked; a ransom note was found.",\
"actions":["Isolate fin-ws-042 at once","Disconnect the network shares","Disable the account of anna.meyer",\
"Check that the backups are intact"],"indicators":["update.exe",".locked"]}"""


def test_an_alert_gets_a_json_verdict(tokenizer: Tokenizer) -> None:
    prompt = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    asked = tokenizer.encode(prompt, add_special_tokens=False).ids
    answer = tokenizer.encode(ANSWER + "<|im_end|>", add_special_tokens=False).ids
    config: dict[str, object] = json.loads((CHECKPOINT / "config.json").read_text())["text_config"]
    model = ReferenceModel(config, load_weights(CHECKPOINT))
    with torch.inference_mode():
        logits = model.logits(torch.tensor([[*asked, *answer]]))[0]
    # one pass over the whole text says what a greedy reader would have written, token by token
    assert torch.equal(logits[len(asked) - 1 : -1].argmax(-1), torch.tensor(answer))
    assert json.loads(ANSWER)["indicators"] == ["update.exe", ".locked"]
