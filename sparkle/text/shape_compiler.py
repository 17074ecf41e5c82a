"""From a job to the compiled shape of its answer, kept for the next one that asks for the same.

Knows no queue, and of the model its tokens alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from llguidance import LLMatcher

from sparkle.errors import GrammarError, InvalidGrammar, UnsupportedSchema
from sparkle.schemas.job import Job, Thinking
from sparkle.schemas.shape import GrammarShape, JsonSchemaShape, RegexShape
from sparkle.text.grammar import read_vocabulary
from sparkle.text.grammar_cache import GrammarCache
from sparkle.text.grammar_compile import GrammarCompiler
from sparkle.text.grammar_trial import GrammarTrial, TrialLimits
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.shape import Shape
from sparkle.text.shape_grammar import AnswerGrammar, answer_grammar, require_schemas
from sparkle.text.tokenizer import Tokenizer

END_OF_THINKING = "</think>"
BEHIND_THINKING = "\n\n"
"""What stands between the thinking's end and the answer, in the template and in what the model learnt."""

_ASKED = {"response_format", "tools", "tool_choice", "parallel_tool_calls"}


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What one job's wishes come to."""

    grammar: AnswerGrammar
    matcher: LLMatcher


class ShapeCompiler:
    """Owns a process that tries grammars first, and keeps what was compiled by tenant. Any thread may ask."""

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        *,
        rows: int,
        end_tokens: Sequence[int],
        limits: SchemaLimits | None = None,
        trial_limits: TrialLimits | None = None,
    ) -> None:
        """The checkpoint in `directory` has `tokenizer`; `rows` and `end_tokens` as for `read_vocabulary`.

        Returns at once; the first job waits until the vocabulary is read, 2 s for the real one.
        """
        self._limits = limits or SchemaLimits()
        self._trial = GrammarTrial(directory, rows=rows, end_tokens=end_tokens, limits=trial_limits)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
        self._vocabulary = self._reader.submit(read_vocabulary, directory, rows=rows, end_tokens=end_tokens)
        self._cache = GrammarCache[_Compiled]()
        self._end_of_thinking = tokenizer.added_tokens[END_OF_THINKING]
        self._lead_in = tuple(tokenizer.encode(BEHIND_THINKING))

    def shape_of(self, job: Job) -> Shape | None:
        """What the job's answer is kept to; None where it may be any text.

        Raises InvalidGrammar, UnsupportedSchema, GrammarTooComplex without content, EngineError where no
        process can be had to try a grammar. Takes milliseconds, seconds at most.
        """
        if job.response_format is None and job.tools is None:
            return None
        asked = json.dumps(job.model_dump(include=_ASKED), ensure_ascii=False)
        compiled = self._cache.get(job.tenant or "", asked, lambda: self._compile(job))
        thinks = job.thinking is not Thinking.OFF
        return Shape(
            compiled=compiled.matcher,
            begins_after=self._end_of_thinking if thinks else None,
            lead_in=self._lead_in if thinks else (),
            complete=job.response_format is not None and job.response_format.complete,
            known=compiled.grammar.known,
            exact=compiled.grammar.exact,
            calls=compiled.grammar.calls,
        )

    def close(self) -> None:
        """End the process, and forget what was compiled."""
        self._reader.shutdown()
        self._trial.close()
        self._cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _compile(self, job: Job) -> _Compiled:
        try:
            return self._compile_as(job, loosest=False)
        except UnsupportedSchema as error:
            if isinstance(job.response_format, RegexShape | GrammarShape) and not job.tools:
                raise InvalidGrammar(
                    "response_format: cannot be read, or is fulfilled by nothing or an empty text; mend it"
                ) from None
            return self._compile_looser(job, error)
        except GrammarError as error:
            return self._compile_looser(job, error)

    def _compile_looser(self, job: Job, error: GrammarError) -> _Compiled:
        """As loose as what is not strict lets it; raises `error` where all is.

        Raises InvalidGrammar where a schema is none, whatever `error` says of it.
        """
        require_schemas(job, self._limits)
        shape = job.response_format
        strict = not isinstance(shape, JsonSchemaShape) or shape.strict
        if strict and all(tool.strict for tool in job.tools or ()):
            raise error
        return self._compile_as(job, loosest=True)

    def _compile_as(self, job: Job, *, loosest: bool) -> _Compiled:
        grammar = answer_grammar(job, self._limits, loosest=loosest)
        assert grammar is not None, "the job asks for one"
        return _Compiled(
            grammar, GrammarCompiler(self._vocabulary.result(), self._trial).compile(grammar.text)
        )
