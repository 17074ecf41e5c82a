"""The data stage: packages and generated chats to the tokenizer and two arrays of tokens.

Needs the registries and a CPU; knows nothing of training.
"""

import json
import lzma
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.train_tiny.chats import draw_chat
from scripts.train_tiny.corpus import documents
from scripts.train_tiny.render import load_template, render_chat
from scripts.train_tiny.sources import SOURCES, fetch
from scripts.train_tiny.vocabulary import END_OF_TEXT, token_id, train_tokenizer

NUM_CHATS = 300_000
# of each source every so-manieth document, and so many chats, teach the tokenizer
_TOKENIZER_STRIDE = 3
_TOKENIZER_CHATS = 20_000
_TOKENIZER_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one source gave."""

    name: str
    archive: str
    sha256: str
    documents: int
    bytes: int
    tokens: int


def build_data(cache: Path, checkpoint: Path, seed: int) -> None:
    """Write tokenizer.json, texts.u16.xz, chats.u16.xz and manifest.json below `cache`.

    `checkpoint` holds the chat template. Tokens are little-endian uint16; each document ends with
    <|endoftext|>.
    """
    cache.mkdir(parents=True, exist_ok=True)
    packages = cache / "packages"
    tokenizer = train_tokenizer(_tokenizer_texts(packages, checkpoint, seed))
    tokenizer.save(str(cache / "tokenizer.json"))

    shares: list[Share] = []
    arrays: list[NDArray[np.uint16]] = []
    for source in SOURCES:
        fetched = fetch(source, packages)
        texts = list(documents(source.name, fetched.root))
        arrays.append(encode(tokenizer, iter(texts)))
        shares.append(
            Share(
                name=source.name,
                archive=fetched.archive,
                sha256=fetched.sha256,
                documents=len(texts),
                bytes=sum(len(text.encode()) for text in texts),
                tokens=len(arrays[-1]),
            )
        )
        print(shares[-1], flush=True)
    _save(cache / "texts.u16.xz", np.concatenate(arrays))

    chats = encode(tokenizer, islice(_chats(checkpoint, seed), NUM_CHATS))
    print(f"chats: {NUM_CHATS} with {len(chats)} tokens", flush=True)
    _save(cache / "chats.u16.xz", chats)
    manifest = {
        "sources": [asdict(share) for share in shares],
        "chats": {"documents": NUM_CHATS, "tokens": len(chats), "seed": seed},
    }
    (cache / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _chats(checkpoint: Path, seed: int) -> Iterator[str]:
    template = load_template(checkpoint)
    rng = Random(seed)
    while True:
        yield render_chat(template, draw_chat(rng))


def _tokenizer_texts(packages: Path, checkpoint: Path, seed: int) -> Iterator[str]:
    for source in SOURCES:
        for text in islice(documents(source.name, fetch(source, packages).root), 0, None, _TOKENIZER_STRIDE):
            yield text[:_TOKENIZER_CHARS]
    yield from islice(_chats(checkpoint, seed), _TOKENIZER_CHATS)


def encode(tokenizer: Tokenizer, texts: Iterator[str]) -> NDArray[np.uint16]:
    """Tokens of all texts in a row, each text ended by <|endoftext|>."""
    end = token_id(tokenizer, END_OF_TEXT)
    rows: list[NDArray[np.uint16]] = []
    while group := list(islice(texts, 1_000)):
        encodings = tokenizer.encode_batch_fast(group, add_special_tokens=False)
        rows.extend(np.array([*encoding.ids, end], dtype=np.uint16) for encoding in encodings)
    return np.concatenate(rows)


def _save(path: Path, tokens: NDArray[np.uint16]) -> None:
    path.write_bytes(lzma.compress(tokens.astype("<u2").tobytes(), preset=4))


def load_tokens(path: Path) -> NDArray[np.uint16]:
    """The tokens of a file that `build_data` wrote, uint16 [N]."""
    return np.frombuffer(lzma.decompress(path.read_bytes()), dtype="<u2").astype(np.uint16)
