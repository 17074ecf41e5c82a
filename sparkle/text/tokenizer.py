"""Text to token ids, and tokens to their bytes. Knows no chat: the spelling of a control token is text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers

from sparkle.errors import InvalidMessage
from sparkle.text.fast_encoder import Encode, fast_encoder
from sparkle.text.tokenizer_file import byte_characters, read_tokenizer


class Tokenizer:
    """A byte-level BPE with added tokens. Every method may be called from any thread."""

    def __init__(self, vocabulary: tokenizers.Tokenizer, encode: Encode) -> None:
        """`vocabulary` tells ids and spellings apart; `encode` makes ids of plain text."""
        self._vocabulary = vocabulary
        self._encode = encode
        added = vocabulary.get_added_tokens_decoder()
        self._added_bytes = {
            token: b"" if described.special else described.content.encode()
            for token, described in added.items()
        }
        self._added_ids = {described.content: token for token, described in added.items()}
        self._latin1 = {ord(character): byte for byte, character in byte_characters().items()}
        # filled as tokens come: the whole table would add a second to the start
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """The tokenizer of a checkpoint, with the fast encoder if it agrees with the reference.

        Raises CheckpointError or UnsupportedModel as `read_tokenizer` does.
        """
        vocabulary = read_tokenizer(directory)
        reference = reference_encoder(vocabulary)
        return cls(vocabulary, fast_encoder(directory / "tokenizer.json", reference) or reference)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; ids go from 0 to one less."""
        return self._vocabulary.get_vocab_size(with_added_tokens=True)

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Spelling to id of the tokens that no plain text becomes: control tokens, tags, media."""
        return self._added_ids

    def encode(self, text: str) -> list[int]:
        """The ids of a text, in which nothing is a control token.

        Raises InvalidMessage for half a surrogate pair, which text from the queue cannot hold.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidMessage(
                "text: holds half a surrogate pair; send text that UTF-8 can write"
            ) from None
        return self._encode(text)

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary; None when there is no such token."""
        return self._vocabulary.token_to_id(token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text.

        Other added tokens are written as they are spelled; special ones, and ids without a token (a model has
        rows to spare), add nothing.
        """
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._bytes_of(token)
        return found

    def spelling(self, token: int) -> tuple[str | None, bytes | None]:
        """A token's text, and what it adds to a text where that is anything but its text in UTF-8.

        Bytes that are no character of themselves are written as `\\xe2`, a special token as it is spelled,
        though it adds nothing; an id without a token has neither.
        """
        octets = self.token_bytes(token)
        if octets:
            text = octets.decode("utf-8", "backslashreplace")
        elif (name := self._vocabulary.id_to_token(token)) is not None:
            text = name
        else:
            return None, None
        return text, None if text.encode() == octets else octets

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added_bytes:
            return self._added_bytes[token]
        spelling = self._vocabulary.id_to_token(token)
        return b"" if spelling is None else spelling.translate(self._latin1).encode("latin-1")


def reference_encoder(vocabulary: tokenizers.Tokenizer) -> Encode:
    """The reference library's encoder over the same vocabulary, without its added tokens."""
    plain = tokenizers.Tokenizer(vocabulary.model)
    plain.normalizer = vocabulary.normalizer
    plain.pre_tokenizer = vocabulary.pre_tokenizer

    def encode(text: str) -> list[int]:
        # the batch form alone lets other threads run meanwhile
        return plain.encode_batch_fast([text], add_special_tokens=False)[0].ids

    return encode
