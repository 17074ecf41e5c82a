"""One random number a (seed, position), without any state between draws. Knows no logits."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def stream_of(seed: int) -> int:
    """What `uniform` takes for this seed: made once a request, it is half of the work."""
    return _mix(seed + _GOLDEN)


def uniform(stream: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits: the same for the same pair, wherever and whenever it is drawn.

    SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", MurmurHash3's
    finaliser in Stafford's variant 13), as a counter: the seed is mixed first so that neighbouring seeds do
    not give shifted copies of one sequence.
    """
    return (_mix(stream + (position + 1) * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
