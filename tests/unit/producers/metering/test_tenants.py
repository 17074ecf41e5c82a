"""What an administrator types becomes a tenant, and a tenant what is shown: each field, and never a hash."""

from __future__ import annotations

import json

import pytest

from sparkle.errors import ConfigError
from sparkle.producers.metering.account import Account, MonthUsage
from sparkle.producers.metering.keys import new_key
from sparkle.producers.metering.tenant import Limits, Tenant
from sparkle.producers.metering.tenant_changes import TenantChanges, new_tenant
from sparkle.producers.metering.tenant_rows import tenant_fields, tenant_table
from sparkle.producers.metering.usage_rows import Form, form_of, usage_rows, written
from tests.metering_rig import NOVEMBER_MS

FULL = TenantChanges(
    models=["sparkle-27b", "org/model.v2"],
    allowance="50_000,000",
    requests_per_minute="60",
    tokens_per_minute="100000",
    max_running="20",
)
ACME = Tenant(
    name="acme",
    region="eu",
    models=("sparkle-27b", "org/model.v2"),
    allowance_tokens=50_000_000,
    limits=Limits(requests_per_minute=60, tokens_per_minute=100_000, max_running=20),
)


def test_every_flag_is_a_field() -> None:
    assert new_tenant("acme", "eu", FULL) == ACME


def test_what_is_not_said_stays_and_what_is_said_goes() -> None:
    _, key = new_key(now_ms=NOVEMBER_MS)
    tenant = ACME.model_copy(update={"keys": (key,)})
    assert TenantChanges().of(tenant) == tenant
    changed = TenantChanges(region="us", models=["any"], allowance="none", max_running="none").of(tenant)
    assert changed == tenant.model_copy(
        update={
            "region": "us",
            "models": (),
            "allowance_tokens": None,
            "limits": tenant.limits.model_copy(update={"max_running": None}),
        }
    )
    assert TenantChanges(allowance="0").of(tenant).allowance_tokens == 0
    assert TenantChanges(allowance=str(2**53 - 1)).of(tenant).allowance_tokens == 2**53 - 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            TenantChanges(allowance="5e6"),
            r"--allowance is '5e6' but must be a whole number of at most \d+, or none",
        ),
        (
            TenantChanges(allowance=str(2**53)),
            "--allowance is '9007199254740992' .* at most 9007199254740991,",
        ),
        (
            TenantChanges(tokens_per_minute="9" * 5000),
            "--tokens-per-minute is '9+ … 9+' .* 9007199254740991,",
        ),
        (TenantChanges(allowance="-1"), "--allowance is '-1'"),
        (TenantChanges(requests_per_minute="0"), "requests_per_minute"),
        (TenantChanges(models=["a b"]), "models"),
        (TenantChanges(region="EU"), "region"),
    ],
)
def test_what_is_wrong_is_named(changes: TenantChanges, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changes.of(ACME)
    with pytest.raises(ConfigError, match="name"):
        new_tenant("Acme", "eu", TenantChanges())


def test_usage_is_shown_by_month_with_the_allowance() -> None:
    account = Account(
        months={
            "2026-11": MonthUsage(jobs=2, prompt_tokens=30, cached_tokens=10, completion_tokens=4),
            "2026-10": MonthUsage(jobs=1, prompt_tokens=5, completion_tokens=1),
        }
    )
    rows = usage_rows(ACME, account, month=None)
    assert written(rows, Form.CSV) == (
        "tenant,month,jobs,prompt_tokens,cached_tokens,completion_tokens,tokens,allowance_tokens\n"
        "acme,2026-10,1,5,0,1,6,50000000\n"
        "acme,2026-11,2,30,10,4,34,50000000"
    )
    text = written(usage_rows(ACME, account, month="2026-11"), Form.JSON)
    assert isinstance(text, str)
    assert json.loads(text) == [
        {
            "tenant": "acme",
            "month": "2026-11",
            "jobs": 2,
            "prompt_tokens": 30,
            "cached_tokens": 10,
            "completion_tokens": 4,
            "tokens": 34,
            "allowance_tokens": 50_000_000,
        }
    ]
    assert [row.jobs for row in usage_rows(ACME, account, month="2026-12")] == [0]
    endless = usage_rows(ACME.model_copy(update={"allowance_tokens": None}), account, month="2026-10")
    assert written(endless, Form.CSV).endswith(",6,")  # type: ignore[union-attr]  # a text, as above


def test_no_hash_is_shown_and_no_key_that_has_ended() -> None:
    _, old = new_key(now_ms=0)
    _, new = new_key(now_ms=NOVEMBER_MS)
    keys = (
        old.model_copy(update={"ends_ms": NOVEMBER_MS}),
        new.model_copy(update={"ends_ms": NOVEMBER_MS + 1}),
    )
    tenant = ACME.model_copy(update={"keys": keys})
    table = tenant_table([tenant], NOVEMBER_MS)
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert cells[2:7] == ["sparkle-27b, org/model.v2", "50,000,000", "60", "100,000", "20"]
    assert cells[7] == f"{new.id} until 2026-11-30 23:00 UTC"
    shown = json.dumps(tenant_fields(tenant))
    assert new.id in shown
    assert new.sha256 not in shown + " ".join(cells)


def test_a_form_that_there_is_not_is_refused_with_those_there_are() -> None:
    assert form_of("csv") is Form.CSV
    with pytest.raises(ConfigError, match="--format is 'xml' but must be one of table, csv, json"):
        form_of("xml")
