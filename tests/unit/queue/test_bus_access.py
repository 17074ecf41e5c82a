"""Who a program is on the bus: files that can be used, files that cannot, nothing of them in any text."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkle.errors import ConfigError
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.connection_settings import ConnectionSettings
from sparkle.queue.nkey import read_seed, write_seed
from tests.certificates import Authority

# of 32 bytes that are all 1: the seeds of a user and of an account
USER = "SUAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAN7EY"
USER_PUBLIC = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
ACCOUNT = "SAAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAKM5I"


def seed_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "w1.seed"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_key_that_is_made_is_for_its_owner_alone_and_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "w1.seed"
    public = write_seed(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    credentials = BusAccess(seed_file=file).read()
    assert credentials.seed == file.read_text().strip()
    assert credentials.inbox_prefix == f"_INBOX_{public}"
    with pytest.raises(ConfigError, match=r"w1.seed: cannot be written \(File exists\)"):
        write_seed(file)
    assert write_seed(tmp_path / "w2.seed") != public


def test_a_known_seed_has_its_public_key(tmp_path: Path) -> None:
    credentials = BusAccess(seed_file=seed_file(tmp_path, f"{USER}\n")).read()
    assert credentials.inbox_prefix == f"_INBOX_{USER_PUBLIC}"


def test_without_files_there_is_neither_key_nor_tls() -> None:
    credentials = BusAccess().read()
    assert (credentials.seed, credentials.inbox_prefix, credentials.tls) == (None, "_INBOX", None)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (USER, 0o640, "others may read this seed"),
        (USER, 0o604, "others may read this seed"),
        (USER[:-20], 0o600, "holds no seed of a user's nkey"),
        ("", 0o600, "holds no seed of a user's nkey"),
        ("p4ssword!", 0o600, "holds no seed of a user's nkey"),
        ("pässword", 0o600, "holds no seed of a user's nkey"),
        (USER_PUBLIC, 0o600, "holds no seed of a user's nkey"),
        (ACCOUNT, 0o600, "holds no seed of a user's nkey"),
    ],
)
def test_a_seed_that_cannot_be_used_is_not_shown(tmp_path: Path, text: str, mode: int, said: str) -> None:
    file = seed_file(tmp_path, text, mode)
    with pytest.raises(ConfigError, match=said) as refused:
        read_seed(file)
    assert str(file) in str(refused.value)
    assert not text or text not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_seed(tmp_path / "nowhere")


def test_without_the_library_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(ConfigError, match=r"sparkle-inference\[nkeys\]"):
        read_seed(seed_file(tmp_path, USER))


def test_certificates_go_together(tmp_path: Path) -> None:
    cert_file, key_file = (authority := Authority(tmp_path, "x")).sign("w1")
    whole = BusAccess(ca_file=authority.file, cert_file=cert_file, key_file=key_file)
    tls = whole.read().tls
    assert tls is not None
    assert tls.check_hostname
    for cert, key in ((cert_file, None), (None, key_file)):
        with pytest.raises(ConfigError, match="cert_file and key_file go together"):
            BusAccess(ca_file=authority.file, cert_file=cert, key_file=key)
    with pytest.raises(ConfigError, match="but not ca_file"):
        replace(whole, ca_file=None)
    _, others_key = authority.sign("w2")
    for changes, named in (
        ({"ca_file": tmp_path / "nowhere"}, "nowhere"),
        ({"ca_file": key_file}, "w1.key"),
        ({"cert_file": tmp_path / "nowhere"}, "nowhere"),
        ({"key_file": others_key}, "w1.pem"),
    ):
        with pytest.raises(ConfigError, match=f"{named}: cannot be used for TLS"):
            replace(whole, **changes).read()


def test_addresses_are_shown_without_who_connects() -> None:
    settings = ConnectionSettings(url="tls://a:4222, nats://user:pa:ss@b:1,c:2")
    assert settings.shown == "a:4222, b:1, c:2"
    assert "pa:ss" not in repr(settings)
