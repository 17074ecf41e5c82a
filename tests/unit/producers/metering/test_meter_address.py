"""What an error of the metering account says of its address, and that other errors stay as they are."""

from __future__ import annotations

import pytest

from sparkle.errors import NotConnected, QueueError, QueueFull, TopologyMissing
from sparkle.producers.metering.meter_address import named_as_meter


@pytest.mark.parametrize("kind", [NotConnected, TopologyMissing])
def test_the_error_says_where_its_address_is_given(kind: type[QueueError]) -> None:
    with pytest.raises(kind) as told, named_as_meter():
        raise kind("no server at 127.0.0.1:4222")
    assert type(told.value) is kind
    assert str(told.value) == (
        "keys and allowances: no server at 127.0.0.1:4222; --meter-nats or [metering] nats says where they "
        "are, [meter_bus] as whom"
    )


def test_another_error_stays_as_it_is() -> None:
    with pytest.raises(QueueFull, match=r"^full$"), named_as_meter():
        raise QueueFull("full")
