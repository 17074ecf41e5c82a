"""Which device computes: the H200 alone, or the CPU."""

from __future__ import annotations

import logging

import pytest

from sparkle.engine.device import Gpu, choose_device
from sparkle.engine.settings import Device
from sparkle.errors import ConfigError

H200 = Gpu(name="NVIDIA H200", capability=(9, 0), memory_bytes=150_754_820_096)
H100 = Gpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory_bytes=84_979_089_408)
B200 = Gpu(name="NVIDIA B200", capability=(10, 0), memory_bytes=191_514_345_472)


@pytest.mark.parametrize(
    ("wanted", "gpu", "chosen"),
    [
        (Device.AUTO, H200, Device.CUDA),
        (Device.CUDA, H200, Device.CUDA),
        (Device.CPU, H200, Device.CPU),
        (Device.AUTO, None, Device.CPU),
        (Device.CPU, None, Device.CPU),
        (Device.CPU, H100, Device.CPU),
    ],
)
def test_the_choice(wanted: Device, gpu: Gpu | None, chosen: Device) -> None:
    assert choose_device(wanted, gpu) is chosen


@pytest.mark.parametrize("gpu", [H100, B200])
def test_another_gpu_is_not_used_and_that_is_told(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    assert choose_device(Device.AUTO, gpu) is Device.CPU
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.WARNING, "gpu_unused")
    assert vars(record)["found"] == str(gpu)


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        (None, "found no GPU"),
        (H100, r"found NVIDIA H100 80GB HBM3 \(compute capability 9\.0, 79 GiB\)"),
        (B200, r"found NVIDIA B200 \(compute capability 10\.0, 178 GiB\)"),
    ],
)
def test_an_h200_that_is_not_there_is_refused(gpu: Gpu | None, found: str) -> None:
    needed = r"sparkle serves on one NVIDIA H200 \(compute capability 9\.0, at least 130 GiB\)"
    with pytest.raises(ConfigError, match=f"{needed}; {found}; use --device cpu"):
        choose_device(Device.CUDA, gpu)
