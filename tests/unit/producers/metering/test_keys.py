"""A key opens its own tenant's door and no other, and leaves no trace of itself."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import KeyRefused, NotConnected
from sparkle.producers.metering.directory import STALE_S, TenantDirectory
from sparkle.producers.metering.keys import PREFIX, id_of, is_valid, new_key
from sparkle.producers.metering.tenant import KeyHash, Tenant
from tests.metering_rig import NOVEMBER_MS, HandClock


class Book:
    """Tenants in a list; `meanwhile` happens while they are read."""

    def __init__(self, *tenants: Tenant) -> None:
        self.tenants = list(tenants)
        self.meanwhile: Callable[[], None] = lambda: None

    async def readable(self) -> tuple[list[Tenant], list[str]]:
        found = list(self.tenants)
        self.meanwhile()
        return found, []


def with_key(name: str, **changes: object) -> tuple[str, Tenant]:
    key, kept = new_key(now_ms=NOVEMBER_MS)
    return key, Tenant(name=name, region="eu", keys=(kept.model_copy(update=changes),))


def refused(directory: TenantDirectory, key: str | None) -> bool:
    try:
        directory.of_key(key)
    except KeyRefused:
        return True
    return False


async def test_each_key_is_its_tenants() -> None:
    (one, acme), (two, other) = with_key("acme"), with_key("other")
    directory = TenantDirectory(Book(acme, other), HandClock().clock)
    await directory.load()
    assert directory.of_key(one) == acme
    assert directory.of_key(two) == other
    swapped = one[: len(PREFIX) + 12] + two[len(PREFIX) + 12 :]
    wrong = [
        None,
        "",
        one[:-1],
        one + "x",
        one.upper(),
        swapped,
        "sk-sparkle-",
        f"{PREFIX}{acme.keys[0].id}-",
    ]
    assert [key for key in wrong if not refused(directory, key)] == []


@given(st.text(max_size=400))
def test_any_text_is_read_and_none_is_a_key(text: str) -> None:
    _, tenant = with_key("acme")
    kept = tenant.keys[0]
    for key in (text, PREFIX + text, f"{PREFIX}{kept.id}-{text}"):
        assert not is_valid(key, kept, now_ms=NOVEMBER_MS)
        assert not is_valid(key, None, now_ms=NOVEMBER_MS)
        assert len(id_of(key)) < 256


def test_nothing_of_a_key_can_be_read_from_what_is_kept() -> None:
    key, kept = new_key(now_ms=NOVEMBER_MS)
    secret = key.removeprefix(f"{PREFIX}{kept.id}-")
    assert len(secret) == 43, "256 random bits"
    assert secret not in kept.model_dump_json()
    assert kept.sha256 not in repr(kept)
    assert new_key(now_ms=NOVEMBER_MS)[0] != key


@pytest.mark.parametrize("is_known", [True, False])
def test_digests_are_compared_in_constant_time_also_for_a_key_that_nobody_has(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    compared = list[tuple[int, int]]()
    real = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("hmac.compare_digest", compare)
    key, kept = new_key(now_ms=NOVEMBER_MS)
    assert is_valid(key, kept if is_known else None, now_ms=NOVEMBER_MS) is is_known
    assert compared == [(64, 64)]


async def test_a_key_ends_when_it_is_said_to() -> None:
    hand = HandClock()
    key, tenant = with_key("acme", ends_ms=NOVEMBER_MS + 5_000)
    directory = TenantDirectory(Book(tenant), hand.clock)
    await directory.load()
    directory.of_key(key)
    hand.pass_s(5.0)
    assert refused(directory, key)


async def test_a_change_counts_at_once_and_old_keys_with_it() -> None:
    key, tenant = with_key("acme")
    directory = TenantDirectory(Book(tenant), HandClock().clock)
    await directory.load()
    new, kept = new_key(now_ms=NOVEMBER_MS)
    directory.put(tenant.model_copy(update={"keys": (kept,), "region": "us"}))
    assert refused(directory, key)
    assert directory.of_key(new).region == "us"


async def test_what_is_told_while_the_book_is_read_is_newer_than_the_book() -> None:
    key, tenant = with_key("acme")
    book = Book(tenant)
    directory = TenantDirectory(book, HandClock().clock)
    locked_out = tenant.model_copy(update={"keys": ()})

    def change() -> None:
        book.tenants, book.meanwhile = [locked_out], lambda: None
        directory.put(locked_out)

    book.meanwhile = change
    await directory.load()
    assert refused(directory, key)


async def test_a_tenant_that_is_gone_has_no_key_left() -> None:
    key, tenant = with_key("acme")
    book = Book(tenant)
    directory = TenantDirectory(book, HandClock().clock)
    await directory.load()
    book.tenants = []
    await directory.load()
    assert refused(directory, key)
    assert directory.names() == []


async def test_who_has_not_seen_the_book_for_long_lets_nobody_in() -> None:
    hand = HandClock()
    key, tenant = with_key("acme")
    directory = TenantDirectory(Book(tenant), hand.clock)
    with pytest.raises(NotConnected):
        directory.of_key(key)
    await directory.load()
    hand.pass_s(STALE_S)
    directory.of_key(key)
    hand.pass_s(1.0)
    with pytest.raises(NotConnected):
        directory.of_key(key)


async def test_no_error_and_no_event_has_a_key(caplog: pytest.LogCaptureFixture) -> None:
    key, tenant = with_key("acme")
    directory = TenantDirectory(Book(tenant), HandClock().clock)
    await directory.load()
    with caplog.at_level(logging.DEBUG), pytest.raises(KeyRefused) as refusal:
        directory.of_key(key + "x")
    said = str(refusal.value) + caplog.text
    assert key not in said
    assert tenant.keys[0].sha256 not in said


def test_a_kept_key_is_checked_when_it_is_read() -> None:
    with pytest.raises(ValueError, match="sha256"):
        KeyHash(id="0" * 12, sha256="x", made_ms=0)
