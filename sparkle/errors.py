"""Every error of Sparkle, one tree; an error's text holds names, limits and ways out, never request content.

    SparkleError                  catch this to catch all
    ├── ConfigError               a setting is missing, unknown or out of its bounds
    ├── ContractError             a message is not one of ours
    │   ├── InvalidMessage        a field is wrong or missing
    │   ├── UnsupportedVersion    another major version of the contract
    │   ├── MessageTooLarge       over the limit of the queue
    │   └── SealError             encryption stands between a message and its reader
    │       ├── UnknownKey        sealed with a key that is not here
    │       ├── EncryptionRequired  not sealed, where nothing else is taken
    │       └── NotAuthentic      not what was sealed: changed, or moved from elsewhere
    ├── QueueError                the queue did not do its part
    │   ├── NotConnected          no server, or the connection ended for good
    │   ├── PublishUncertain      no answer in time: the message may or may not be stored
    │   ├── QueueFull             the stream is at its limit
    │   │   └── TenantOverShare   it is not, but this tenant has as many jobs waiting as it may
    │   └── TopologyMissing       the streams are not declared
    ├── AccessError               whoever asks through the gateway may not
    │   ├── KeyRefused            the key is missing, wrong or withdrawn
    │   ├── AllowanceSpent        the tenant has no tokens left this month
    │   └── RateLimited           too much at once
    ├── JobFailed                 the job ended in a Failure: `.code` says which
    ├── AnswerChanged             a later attempt wrote other tokens than those already handed out
    ├── GrammarError              an answer cannot be kept to a shape
    │   ├── InvalidGrammar        the shape is none: no schema, no regular expression, no grammar
    │   ├── UnsupportedSchema     the shape says what cannot be enforced
    │   ├── GrammarTooComplex     the shape is over a limit of size or of work
    │   └── MatcherFailed         the grammar's state is lost in the middle of an answer
    ├── CheckpointError           a model directory cannot be loaded
    │   ├── UnsupportedModel      another architecture, or a field in another form
    │   └── TensorMismatch        a tensor is missing, extra or of the wrong shape
    └── EngineError               the engine cannot go on
        ├── EngineExited          the engine process ended or never became ready
        └── IllegalMove           a request was moved between states that have no such move

`retryable` alone decides whether a message goes back to the queue or is ended.
"""

from __future__ import annotations

from enum import StrEnum

MOST_LETTERS = 2_000
"""Of an error's text that are told; of a longer one its beginning and its end, the way out."""


class FailureCode(StrEnum):
    """Why a job ended without an answer. The value is part of the contract."""

    INVALID_JOB = "invalid_job"  #: the message is no valid job
    UNSUPPORTED = "unsupported"  #: valid, but asks for what this version does not serve
    TOO_LONG = "too_long"  #: prompt and answer do not fit the model's or the worker's context
    DEADLINE_EXCEEDED = "deadline_exceeded"  #: the deadline passed before the answer was complete
    CANCELLED = "cancelled"  #: the producer cancelled it
    POISON_JOB = "poison_job"  #: given up after too many deliveries
    ENGINE_ERROR = "engine_error"  #: the engine failed on this job
    UNSUPPORTED_SCHEMA = "unsupported_schema"  #: the answer's shape says what cannot be enforced
    GRAMMAR_TOO_COMPLEX = "grammar_too_complex"  #: the answer's shape is over a limit of size or of work
    INVALID_GRAMMAR = "invalid_grammar"  #: the answer's shape is no schema, regular expression or grammar
    UNKNOWN_KEY = "unknown_key"  #: encrypted with a key that the worker has not
    NOT_AUTHENTIC = "not_authentic"  #: encrypted, and then changed or moved
    ENCRYPTION_REQUIRED = "encryption_required"  #: not encrypted, where nothing else is taken


class SparkleError(Exception):
    """The root of the tree. Its text is one line and no page, whatever is in the names that it tells."""

    retryable: bool = False

    def __str__(self) -> str:
        text = super().__str__()
        # of a file that is damaged, also names may be: as long as the file, and nothing for a terminal
        if len(text) > MOST_LETTERS:
            text = f"{text[: MOST_LETTERS // 2]} … {text[-MOST_LETTERS // 2 :]}"
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class ConfigError(SparkleError):
    """A setting is missing, unknown or out of its bounds."""


class ContractError(SparkleError):
    """A message is not one of ours."""


class InvalidMessage(ContractError):
    """A field of a message is wrong or missing; the text names the field, never its value."""


class UnsupportedVersion(ContractError):
    """The message has another major version than this program."""


class MessageTooLarge(ContractError):
    """The message is over the queue's limit; the text has both sizes."""


class SealError(ContractError):
    """Encryption stands between a message and its reader."""


class UnknownKey(SealError):
    """The message is sealed with a key that is not here."""


class EncryptionRequired(SealError):
    """The message is not sealed, and nothing else is taken here."""


class NotAuthentic(SealError):
    """The message is not what was sealed for its subject; the text has the key's id."""


class QueueError(SparkleError):
    """The queue did not do its part; trying again may help."""

    retryable = True


class NotConnected(QueueError):
    """No server answers at the address, or the connection ended for good."""


class PublishUncertain(QueueError):
    """No acknowledgement in time: the message may or may not be stored."""


class QueueFull(QueueError):
    """The stream is at its limit of messages or bytes."""


class TenantOverShare(QueueFull):
    """The tenant has as many jobs waiting as it may; the text has both numbers."""


class TopologyMissing(QueueError):
    """The streams or consumers are not declared; `sparkle topology apply` declares them."""

    retryable = False


class AccessError(SparkleError):
    """Whoever asks through the gateway may not; the text never has their key."""


class KeyRefused(AccessError):
    """The key is missing, wrong or withdrawn: which of them is not told."""


class AllowanceSpent(AccessError):
    """The tenant's tokens of this month are spent; `resets_ms`, Unix time, is when there are new ones."""

    def __init__(self, message: str, *, resets_ms: int) -> None:
        super().__init__(message)
        self.resets_ms = resets_ms


class RateLimited(AccessError):
    """Too many requests, tokens or jobs at once; may go again in `retry_after_s`."""

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class JobFailed(SparkleError):
    """The job ended in a Failure. `code` and `retryable` are the Failure's."""

    def __init__(self, code: FailureCode, message: str, *, retryable: bool) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retryable = retryable


class AnswerChanged(SparkleError):
    """A later attempt wrote other tokens than those already handed out; await the result instead."""


class GrammarError(SparkleError):
    """An answer cannot be kept to a shape; `code` is what its job ends with."""

    code: FailureCode = FailureCode.ENGINE_ERROR


class InvalidGrammar(GrammarError):
    """The shape is none: what was given for a schema, a regular expression or a grammar is not one."""

    code = FailureCode.INVALID_GRAMMAR


class UnsupportedSchema(GrammarError):
    """The shape says what cannot be enforced; the text has the path in keywords and positions, no names."""

    code = FailureCode.UNSUPPORTED_SCHEMA


class GrammarTooComplex(GrammarError):
    """The shape is over a limit of size, time or memory; the text has the limit, of sizes both numbers."""

    code = FailureCode.GRAMMAR_TOO_COMPLEX


class MatcherFailed(GrammarError):
    """The grammar's state is lost in the middle of an answer, which must not be given out as complete."""


class CheckpointError(SparkleError):
    """A model directory cannot be loaded."""


class UnsupportedModel(CheckpointError):
    """Another architecture, or a field that this model does not have in this form."""


class TensorMismatch(CheckpointError):
    """A tensor is missing, extra or of the wrong shape or dtype; the text names it."""


class EngineError(SparkleError):
    """The engine cannot go on."""

    retryable = True


class EngineExited(EngineError):
    """The engine process ended or never became ready."""


class IllegalMove(EngineError):
    """A request was moved between two states that have no such move: a fault of the program."""

    retryable = False
