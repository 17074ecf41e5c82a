"""Log probabilities as OpenAI's clients read them, with tokens' texts. Knows no endpoint and no tokenizer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from sparkle.schemas.answer import Alternative, Spelling, TokenLogprobs


def token_logprobs(tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> list[dict[str, object]]:
    """One entry a token, as chats and responses have them."""
    return [
        {
            **_likely(token, entry, entry.logprob),
            "top_logprobs": [_of(alternative) for alternative in entry.top],
        }
        for token, entry in zip(tokens, entries, strict=True)
    ]


def chat_logprobs(tokens: Sequence[int], entries: Sequence[TokenLogprobs] | None) -> dict[str, object] | None:
    """Of a choice of a chat, or of a piece of it; None where none were asked for."""
    return {"content": token_logprobs(tokens, entries), "refusal": None} if entries else None


class CompletionLogprobs:
    """Those of one choice of a completion, piece after piece: they say where in the text a token begins."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._chars: int | None = 0

    def of(self, tokens: Sequence[int], entries: Sequence[TokenLogprobs] | None) -> dict[str, object] | None:
        """Of the next tokens; None where none were asked for."""
        if not entries:
            return None
        offsets = [self._begin(entry) for entry in entries]
        return {
            "tokens": [token_name(token, entry) for token, entry in zip(tokens, entries, strict=True)],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [
                {token_name(one.token, one): one.logprob for one in entry.top} for entry in entries
            ],
            "text_offset": None if None in offsets else offsets,
        }

    def _begin(self, entry: TokenLogprobs) -> int | None:
        """Code points before the token; None behind one whose text is not told."""
        before, added = self._chars, _added(entry)
        if before is None or added is None:
            self._chars = None
        else:
            self._chars = before + len(self._utf8.decode(added))
        return self._chars if added is None else before


def _of(alternative: Alternative) -> dict[str, object]:
    return _likely(alternative.token, alternative, alternative.logprob)


def _likely(token: int, spelling: Spelling, logprob: float) -> dict[str, object]:
    # a token that adds nothing has no bytes in the text
    return {
        "token": token_name(token, spelling),
        "logprob": logprob,
        "bytes": list(_added(spelling) or b"") or None,
    }


def token_name(token: int, spelling: Spelling) -> str:
    """A token's text; where that is not told its id, as vLLM writes it."""
    return f"token_id:{token}" if spelling.text is None else spelling.text


def _added(spelling: Spelling) -> bytes | None:
    """What a token adds to the text; None where that is not told."""
    if spelling.octets is not None:
        return spelling.octets
    return None if spelling.text is None else spelling.text.encode()
