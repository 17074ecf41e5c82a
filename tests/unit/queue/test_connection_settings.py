"""Who a connection is, as its address says."""

from __future__ import annotations

import pytest

from sparkle.errors import ConfigError
from sparkle.queue.connection_settings import ConnectionSettings, Login


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("nats://127.0.0.1:4222", Login(None, None, None)),
        ("tls://meter:se:cret@n1:4222, n2:4222", Login("meter", "se:cret", None)),
        ("nats://meter:x@n1:4222,nats://meter:x@n2:4222", Login("meter", "x", None)),
        ("nats://t0ken@n1:4222", Login(None, None, "t0ken")),
        ("nats://meter:@n1:4222", Login("meter", "", None)),
    ],
)
def test_the_user_of_an_address_is_that_of_all_servers(url: str, login: Login) -> None:
    settings = ConnectionSettings(url=url)
    assert settings.login == login
    assert "cret" not in repr(settings) + repr(settings.login) + settings.shown


def test_two_users_are_refused_without_a_password() -> None:
    with pytest.raises(ConfigError, match="different users") as refusal:
        _ = ConnectionSettings(url="nats://a:secret@n1,nats://b:secret@n2").login
    assert "secret" not in str(refusal.value)
