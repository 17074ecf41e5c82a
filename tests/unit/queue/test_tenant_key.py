"""What a key has sealed is read by that key alone, in its place alone, unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import ConfigError, NotAuthentic
from sparkle.queue.tenant_key import ADDED_BYTES, NONCE_BYTES, TenantKey

PLACE = "reply.acme.01"
SEALED = "cf470fb7de95f720edd826aaa719a4bca75a19b329cc68bc683803ce1c89d1d43261e2"
KEY = TenantKey("acme", "k1", bytes(range(32)))


@given(st.binary(max_size=300), st.text(max_size=40))
def test_it_opens_what_it_sealed(payload: bytes, place: str) -> None:
    sealed = KEY.seal(place, payload)
    assert len(sealed) == len(payload) + ADDED_BYTES
    assert KEY.open(place, sealed) == payload


@given(st.binary(min_size=1, max_size=60), st.data())
def test_any_change_is_found(payload: bytes, data: st.DataObject) -> None:
    sealed = KEY.seal(PLACE, payload)
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytes([sealed[place] ^ data.draw(st.integers(1, 255))])
    with pytest.raises(NotAuthentic):
        KEY.open(PLACE, sealed[:place] + changed + sealed[place + 1 :])


@given(st.binary(max_size=60), st.integers(0, 88))
def test_a_part_or_noise_is_no_payload(noise: bytes, length: int) -> None:
    with pytest.raises(NotAuthentic):
        KEY.open(PLACE, noise)
    with pytest.raises(NotAuthentic):
        KEY.open(PLACE, KEY.seal(PLACE, bytes(60))[: min(length, 60 + ADDED_BYTES - 1)])


@pytest.mark.parametrize(
    "place", ["reply.acme.02", "reply.other.01", "result.acme.01", "jobs.eu.p0.acme.01", ""]
)
def test_what_is_moved_is_found(place: str) -> None:
    with pytest.raises(NotAuthentic, match="key k1"):
        KEY.open(place, KEY.seal(PLACE, b"payload"))


def test_another_key_of_the_same_id_opens_nothing() -> None:
    other = TenantKey("acme", "k1", bytes(32))
    with pytest.raises(NotAuthentic, match="two keys have this id"):
        other.open(PLACE, KEY.seal(PLACE, b"payload"))


def test_no_two_messages_have_a_nonce_or_bytes_in_common() -> None:
    sealed = [KEY.seal(PLACE, b"the same") for _ in range(2_000)]
    assert len({one[:NONCE_BYTES] for one in sealed}) == len({one[NONCE_BYTES:] for one in sealed}) == 2_000


def test_the_form_stays_what_it_is() -> None:
    # sealed by the first version that had it: a change would lock out whoever has not got it yet
    sealed = bytes.fromhex(SEALED)
    assert KEY.open(PLACE, sealed) == b"payload"


def test_a_secret_is_32_bytes_and_shown_nowhere() -> None:
    with pytest.raises(ConfigError, match="has 16 bytes but must have 32"):
        TenantKey("acme", "k1", bytes(16))
    assert "secret" not in repr(KEY)
    assert repr(KEY) == "TenantKey(tenant='acme', id='k1')"
