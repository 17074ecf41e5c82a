"""A file of keys: who seals, who opens, what changes when it does; what is wrong is told without a secret."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from sparkle.errors import ConfigError, NotAuthentic, UnknownKey
from sparkle.queue.key_ring import LOOK_EVERY_S, EncryptionSettings, KeyRing
from tests.key_files import key_file


class Clock:
    """Seconds, set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def look_again(self) -> None:
        """The time has come to look at the file."""
        self.now_s += LOOK_EVERY_S


def test_the_last_key_of_a_tenant_seals_and_all_open(tmp_path: Path) -> None:
    ring = KeyRing(key_file(tmp_path / "keys", {"acme": ["k1", "k2"], "other": ["k1"]}))
    assert ring.newest("acme").id == "k2"
    sealed = ring.named("acme", "k1").seal("here", b"payload")
    assert ring.named("acme", "k1").open("here", sealed) == b"payload"
    # of the same id, and another one even so
    with pytest.raises(NotAuthentic):
        ring.newest("other").open("here", sealed)
    with pytest.raises(UnknownKey, match="none of the 2 keys of tenant acme"):
        ring.named("acme", "k3")
    with pytest.raises(UnknownKey, match="no key of tenant nobody"):
        ring.newest("nobody")
    with pytest.raises(UnknownKey, match="none of the 0 keys"):
        ring.named("nobody", "k1")


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparkle.queue.key_ring")
    clock = Clock()
    file = key_file(tmp_path / "keys", {"acme": ["k1"]})
    ring = KeyRing(file, clock)
    key_file(file, {"acme": ["k1", "k2"]})
    assert ring.newest("acme").id == "k1", "not looked at yet"
    clock.look_again()
    assert ring.newest("acme").id == "k2"
    file.write_text("[acme", encoding="utf-8")
    clock.look_again()
    assert ring.newest("acme").id == "k2"
    file.unlink()
    clock.look_again()
    assert ring.named("acme", "k1").id == "k1"
    key_file(file, {"acme": ["k3"]}, mode=0o644)
    clock.look_again()
    assert ring.newest("acme").id == "k2", "others can read it"
    file.chmod(0o600)
    clock.look_again()
    assert ring.newest("acme").id == "k3"
    events = [record.message for record in caplog.records]
    assert events == ["keys_read", *["keys_unusable"] * 3, "keys_read"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[acme", "is not TOML"),
        (b"\xff", "is not TOML"),
        ('acme = "SECRET"', "under a tenant's name"),
        ('[acme]\nk1 = "not base64 SECRET"', "the secret of key k1 is not base64"),
        ("[acme]\nk1 = 7", "the secret of key k1 is not base64"),
        ('[acme]\nk1 = "U0VDUkVU"', "the secret of key k1 has 6 bytes but must have 32"),
        ('[acme]\n"U0VDUkVU/" = "k1"', "a tenant or a key's id is not 1 to 63"),
        ('["U0VDUkVU/"]\nk1 = "SECRET"', "a tenant or a key's id is not 1 to 63"),
    ],
)
def test_a_wrong_file_is_told_without_a_secret(text: str | bytes, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        KeyRing(file)
    assert wrong in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert "U0VDUkVU" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o610])
def test_a_file_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"mode {mode:o}\); `chmod 600` it"):
        KeyRing(key_file(tmp_path / "keys", {"acme": ["k1"]}, mode=mode))


def test_settings_with_no_keys_seal_nothing_and_cannot_require_it(tmp_path: Path) -> None:
    assert EncryptionSettings().ring() is None
    with pytest.raises(ConfigError, match="required but there is no keys_file"):
        EncryptionSettings(required=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        EncryptionSettings(keys_file=tmp_path / "none").ring()


def test_without_the_library_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sparkle.queue.tenant_key", None)
    with pytest.raises(ConfigError, match=r"sparkle-inference\[encryption\]"):
        KeyRing(key_file(tmp_path / "keys", {"acme": ["k1"]}))
