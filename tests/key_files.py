"""Files of tenants' keys for tests: secrets that follow from their names."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def secret_of(name: str) -> str:
    """A secret of 32 bytes in base64."""
    return base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()


def key_file(path: Path, keys: dict[str, list[str]], *, mode: int = 0o600) -> Path:
    """Write a file with these key ids of each tenant."""
    lines: list[str] = []
    for tenant, ids in keys.items():
        lines.append(f"[{tenant}]")
        lines += [f'{key_id} = "{secret_of(f"{tenant} {key_id}")}"' for key_id in ids]
    path.write_text("\n".join(lines), encoding="utf-8")
    path.chmod(mode)
    return path
