"""What the trial process says of a grammar, one byte each. Knows no grammar."""

from __future__ import annotations

from enum import Enum


class Verdict(bytes, Enum):
    """Never a text: the compiler's own messages quote the schema."""

    READY = b"r"  #: the process has its vocabulary and waits for grammars
    COMPILES = b"c"  #: the grammar may be compiled where a crash would cost others
    REFUSED = b"u"  #: the compiler does not enforce it, or nothing is valid under it
    ENDS_AT_ONCE = b"e"  #: an answer without a token would be complete
    TOO_COMPLEX = b"x"  #: over a limit of the compiler
