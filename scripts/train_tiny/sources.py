"""Fetches the packages whose text the tiny model reads, and says under which licence each comes.

Knows registries and archives; knows nothing of what is inside them.
"""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One package of a public registry."""

    name: str
    """Short name; also the reader's name in `corpus.READERS`."""
    registry: Literal["debian", "pypi", "npm"]
    """Where the package lies; Debian means Debian 12 (bookworm)."""
    package: str
    """The package's name there."""
    version: str
    """The version asked for; empty for Debian, whose archive keeps only the newest."""
    licence: str
    """SPDX expression of the text that is read."""
    holder: str
    """Whom the licence names."""
    text: str
    """What of the package is read."""


SOURCES: tuple[Source, ...] = (
    Source(
        name="python",
        registry="debian",
        package="python3.11-doc",
        version="",
        licence="PSF-2.0",
        holder="Python Software Foundation",
        text="documentation, reStructuredText",
    ),
    Source(
        name="nodejs",
        registry="debian",
        package="nodejs-doc",
        version="",
        licence="MIT",
        holder="Node.js contributors",
        text="API documentation, Markdown",
    ),
    Source(
        name="postgresql",
        registry="debian",
        package="postgresql-doc-15",
        version="",
        licence="PostgreSQL",
        holder="PostgreSQL Global Development Group; Regents of the University of California",
        text="manual",
    ),
    Source(
        name="erlang",
        registry="debian",
        package="erlang-doc",
        version="",
        licence="Apache-2.0",
        holder="Ericsson AB",
        text="reference manuals and guides",
    ),
    Source(
        name="rust",
        registry="debian",
        package="rust-doc",
        version="",
        licence="MIT OR Apache-2.0",
        holder="The Rust Project Developers",
        text="the Book, the Reference, the Nomicon, standard library pages",
    ),
    Source(
        name="scap",
        registry="debian",
        package="ssg-debian",
        version="",
        licence="BSD-3-Clause",
        holder="Red Hat, Inc. and the SCAP Security Guide contributors",
        text="rules: description and rationale",
    ),
    Source(
        name="botocore",
        registry="pypi",
        package="botocore",
        version="1.44.8",
        licence="Apache-2.0",
        holder="Amazon.com, Inc. or its affiliates",
        text="service documentation, shapes as JSON",
    ),
    Source(
        name="google",
        registry="pypi",
        package="google-api-python-client",
        version="2.202.0",
        licence="Apache-2.0",
        holder="Google LLC",
        text="discovery documents: schemas as JSON",
    ),
    Source(
        name="octokit",
        registry="npm",
        package="@octokit/webhooks-examples",
        version="7.6.1",
        licence="MIT",
        holder="Gregor Martynus and the Octokit contributors",
        text="webhook payloads as JSON",
    ),
    Source(
        name="prowler",
        registry="pypi",
        package="prowler",
        version="5.46.0",
        licence="Apache-2.0",
        holder="Toni de la Fuente and the Prowler contributors",
        text="cloud checks: description, risk, remediation",
    ),
    Source(
        name="misp",
        registry="pypi",
        package="pymispgalaxies",
        version="1.1.1",
        licence="CC0-1.0",
        holder="the MISP project (dual-licensed CC0-1.0 or BSD-2-Clause; taken under CC0-1.0)",
        text="threat actors and malware families: descriptions",
    ),
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A package on disk."""

    root: Path
    """The folder into which it was unpacked."""
    archive: str
    """The archive's file name, version included."""
    sha256: str
    """The archive's SHA-256 in hexadecimal."""


def fetch(source: Source, folder: Path) -> Fetched:
    """Download and unpack one package below `folder`; done before, it is only looked up.

    Raises subprocess.CalledProcessError if the registry has no such package.
    """
    home = folder / source.name
    root = home / "content"
    home.mkdir(parents=True, exist_ok=True)
    if not root.exists():
        archive = _download(source, home)
        # unpack beside the final name, so that an interrupted run starts over
        partial = home / "partial"
        _UNPACK[source.registry](archive, partial)
        partial.rename(root)
    archive = next(path for path in sorted(home.iterdir()) if path.is_file())
    return Fetched(root, archive.name, hashlib.sha256(archive.read_bytes()).hexdigest())


def _download(source: Source, home: Path) -> Path:
    pinned = f"{source.package}@{source.version}"
    pip = [sys.executable, "-m", "pip", "download"]
    command: dict[str, list[str]] = {
        "debian": ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", source.package],
        "npm": ["npm", "pack", "--silent", pinned],
        "pypi": [*pip, "-q", "--no-deps", "--only-binary=:all:", pinned.replace("@", "==")],
    }
    subprocess.run(command[source.registry], cwd=home, check=True, stdout=subprocess.DEVNULL)
    return next(path for path in home.iterdir() if path.is_file())


def _unpack_debian(archive: Path, target: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(archive), str(target)], check=True)


def _unpack_wheel(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(target)


def _unpack_npm(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")


_UNPACK: dict[str, Callable[[Path, Path], None]] = {
    "debian": _unpack_debian,
    "pypi": _unpack_wheel,
    "npm": _unpack_npm,
}
