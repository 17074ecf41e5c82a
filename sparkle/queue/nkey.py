"""The nkey that a program shows to the bus: its seed in a file of its own, its public half in the server's.

Seeds come from files alone: an argument or a variable can be seen by others. Knows no connection.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, cast

from sparkle.errors import ConfigError

_OTHERS = 0o077
_USER = "U"


class _KeyPair(Protocol):
    public_key: bytes


class _Nkeys(Protocol):
    """What is used of the library, which has no types."""

    PREFIX_BYTE_USER: int
    NkeysError: type[Exception]

    def encode_seed(self, src: bytes, prefix: int) -> bytes: ...

    def from_seed(self, seed: bytearray) -> _KeyPair: ...


def read_seed(file: Path) -> str:
    """The seed in a file. Raises ConfigError where it holds none, or others may read it."""
    try:
        if file.stat().st_mode & _OTHERS:
            raise ConfigError(f"{file}: others may read this seed; `chmod 600` it")
        seed = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _no_seed(file) from None
    public_key(seed, file)
    return seed


def write_seed(file: Path) -> str:
    """Make a nkey and write its seed to a new file that only its owner may read; its public key.

    Raises ConfigError where there is such a file or it cannot be written.
    """
    nkeys = _nkeys()
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as out:
            out.write(f"{seed}\n")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror})") from None
    return public_key(seed, file)


def public_key(seed: str, file: Path) -> str:
    """What servers know the nkey by. Raises ConfigError, naming the file that the seed is from."""
    nkeys = _nkeys()
    try:
        public = nkeys.from_seed(bytearray(seed.encode())).public_key.decode()
    except (nkeys.NkeysError, ValueError):
        raise _no_seed(file) from None
    if not public.startswith(_USER):
        raise _no_seed(file)
    return public


def _no_seed(file: Path) -> ConfigError:
    return ConfigError(f"{file}: holds no seed of a user's nkey; `sparkle topology key FILE` makes one")


def _nkeys() -> _Nkeys:
    """The library, which only who has a seed needs."""
    try:
        import nkeys  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise ConfigError(
            "nkeys is not installed; `pip install 'sparkle-inference[nkeys]'` brings what a seed needs"
        ) from None
    return cast("_Nkeys", nkeys)
