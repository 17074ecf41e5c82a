"""Settings of the gateway: bounds, and that nobody opens it to the world without keys."""

from __future__ import annotations

import pytest

from sparkle.config import load
from sparkle.errors import ConfigError
from sparkle.producers.gateway.settings import GatewaySettings, is_loopback


def test_without_keys_it_listens_on_this_machine_alone() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert GatewaySettings(no_keys=True, host=host).no_keys
        assert is_loopback(host)
    for host in ("0.0.0.0", "10.0.0.1", "gateway.example", "::"):
        with pytest.raises(ConfigError, match=f"no_keys with host {host}"):
            GatewaySettings(no_keys=True, host=host)


@pytest.mark.parametrize("name", ["max_open", "body_max_bytes", "send_timeout_s", "file_s", "drain_s"])
def test_what_must_be_above_0_is(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        load(GatewaySettings, "gateway", environ={}, flags={name: 0})


def test_ports_and_tokens_have_their_bounds() -> None:
    with pytest.raises(ConfigError, match="port is 65536"):
        GatewaySettings(port=65_536)
    with pytest.raises(ConfigError, match="max_tokens is 0"):
        GatewaySettings(max_tokens=0)


def test_models_are_a_list() -> None:
    assert GatewaySettings(models=" a, b,,").always_served == ("a", "b")
    assert GatewaySettings().always_served == ()
