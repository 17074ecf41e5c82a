"""What a local service needs is checked before anything starts."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import pytest

from sparkle.errors import ConfigError
from sparkle.producers import local_service
from sparkle.producers.local_service import LocalService, LocalServiceSettings


@pytest.mark.parametrize("missing", local_service.WORKER_MODULES)
async def test_a_missing_extra_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None if name == missing else find_spec(name)

    monkeypatch.setattr(local_service, "find_spec", found)
    stages: list[str] = []
    with pytest.raises(ConfigError) as caught:
        async with LocalService(LocalServiceSettings(), stages.append):
            pass
    assert str(caught.value) == (
        f"{missing}: not installed; `pip install 'sparkle-inference[worker,local]'` "
        "brings what a worker on this machine needs"
    )
    assert stages == []
