"""Files in memory: what is held of them is what is counted."""

from __future__ import annotations

import pytest

from sparkle.producers.gateway.faults import ApiFault
from sparkle.producers.gateway.kept_files import KeptFiles


async def test_a_file_deleted_while_a_batch_writes_it_takes_no_room() -> None:
    sizes: list[int] = []
    files = KeptFiles(tenant_max_bytes=10, keep_s=1000.0, on_size=sizes.append)
    output = files.add("acme", "output.jsonl", "batch_output")
    files.append(output, b"123456")
    files.delete("acme", output.id)
    # the batch goes on, and comes to its end
    files.append(output, b"789012")
    files.expire(output)
    assert (sizes[-1], len(output.data), output.expires_s) == (0, 6, None)
    assert files.of("acme") == []
    # all of the tenant's room is there again, and no more of it
    files.expire(files.add("acme", "in.jsonl", "batch", b"1234567890"))
    assert sizes[-1] == 10
    with pytest.raises(ApiFault, match="413 files_too_large"):
        files.add("acme", "more.jsonl", "batch", b"1")
    files.clear()
    assert sizes[-1] == 0
