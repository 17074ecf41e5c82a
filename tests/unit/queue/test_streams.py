"""What the streams are declared to be."""

from __future__ import annotations

import pytest

from sparkle.errors import ConfigError
from sparkle.queue.streams import TopologySettings, consumer_config, stream_configs
from sparkle.schemas.priority import PriorityClass


def test_nothing_is_ever_on_disk() -> None:
    configs = stream_configs(TopologySettings(), regions=("eu",))
    assert {config["name"]: config["storage"] for config in configs} == {
        "JOBS": "memory",
        "RESULTS": "memory",
        "CONTROL": "memory",
        "ANSWERED": "memory",
    }


def test_a_job_waits_for_ever_and_its_end_ten_minutes_for_a_producer_who_is_away() -> None:
    configs = stream_configs(TopologySettings(), regions=("eu",))
    assert {config["name"]: config.get("max_age") for config in configs} == {
        "JOBS": None,
        "RESULTS": 600_000_000_000,
        "CONTROL": 900_000_000_000,
        "ANSWERED": 600_000_000_000,
    }


def test_the_jobs_stream_holds_exactly_the_regions_and_classes_that_are_served() -> None:
    jobs = stream_configs(TopologySettings(), regions=("eu", "us"))[0]
    assert jobs["subjects"] == [
        f"jobs.{region}.p{number}.*.*" for region in ("eu", "us") for number in range(5)
    ]


def test_the_bell_carries_no_body() -> None:
    jobs = stream_configs(TopologySettings(), regions=("eu",))[0]
    assert jobs["republish"] == {
        "src": "jobs.*.*.*.*",
        "dest": "bell.{{wildcard(1)}}.{{wildcard(2)}}",
        "headers_only": True,
    }


def test_a_consumer_never_gives_up_by_itself() -> None:
    config = consumer_config(TopologySettings(ack_wait_s=1.5), "eu", PriorityClass.P3)
    assert (config["max_deliver"], config["ack_wait"]) == (-1, 1_500_000_000)
    assert (config["name"], config["filter_subject"]) == ("eu-p3", "jobs.eu.p3.>")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"replicas": 2}, "replicas is 2 but must be 1 or 3"),
        ({"regions": " ,"}, "regions is empty"),
        ({"regions": "eu,US"}, "a name in regions is 'US' but must be"),
        ({"ack_wait_s": 0.0}, "ack_wait_s is 0.0 but must be above 0"),
        ({"jobs_max_bytes": -1}, "jobs_max_bytes is -1 but must be above 0"),
    ],
)
def test_wrong_settings_are_refused_with_their_value(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TopologySettings(**wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_regions_are_named_once_each() -> None:
    assert TopologySettings(regions="eu, us,eu").region_names == ("eu", "us")
