"""The typed door to Triton and its Gluon: to a type checker a kernel is a plain function. Knows no kernel.

Triton has no types and exists on Linux alone. Where it is missing, a kernel file can still be imported for
its reference; launching a kernel there is a RuntimeError. Gluon is Triton's lower language, in which layouts,
shared memory, barriers and bulk copies are written out; it has no interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

try:
    import triton  # pyright: ignore[reportMissingTypeStubs] it has none
    from triton.experimental import gluon  # pyright: ignore[reportMissingTypeStubs] nor has it
except ImportError:
    triton = gluon = None

tl: Any = None if triton is None else cast(Any, triton).language
knobs: Any = None if triton is None else cast(Any, triton).knobs
gl: Any = None if gluon is None else cast(Any, gluon).language
hopper: Any = None if gl is None else gl.nvidia.hopper

# inside a kernel nothing has a type that Python could check: these names say what a value stands for. Triton
# looks them up when it compiles, and takes a parameter annotated `constexpr` as fixed at compile time
if TYPE_CHECKING:
    Pointer: TypeAlias = Any
    Block: TypeAlias = Any
    constexpr: TypeAlias = int
elif triton is None:
    Pointer = Block = constexpr = object
else:
    Pointer = Block = tl.tensor
    constexpr = tl.constexpr


class Kernel(Protocol, Generic[P, R_co]):
    """A compiled-on-first-use function: `kernel[grid](...)` launches it, another kernel calls it inline."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """The launch over this grid; takes the kernel's arguments and num_warps, num_stages, launch_pdl."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The call inside another kernel."""
        ...


def jit(*unspecialised: str) -> Callable[[Callable[P, R_co]], Kernel[P, R_co]]:
    """The decorator of every kernel; one binary serves all values of the parameters in `unspecialised`.

    Nothing is known of those, not even that a stride is a multiple of 16: loads by them come in small pieces.
    """
    return _decorator(triton, unspecialised)


def gluon_jit(*unspecialised: str) -> Callable[[Callable[P, R_co]], Kernel[P, R_co]]:
    """The decorator of every kernel in Gluon."""
    return _decorator(gluon, unspecialised)


def _decorator(
    language: object | None, unspecialised: tuple[str, ...]
) -> Callable[[Callable[P, R_co]], Kernel[P, R_co]]:
    def decorate(function: Callable[P, R_co]) -> Kernel[P, R_co]:
        if language is None:
            return cast(Kernel[P, R_co], _Missing(function.__name__))
        compile_later = cast(Any, language).jit(do_not_specialize=list(unspecialised))
        return cast(Kernel[P, R_co], compile_later(function))

    return decorate


class _Missing:
    """Stands for a kernel where Triton is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        raise RuntimeError(
            f"kernel {self._name} needs triton, which exists on Linux: install sparkle-inference[worker]"
        )
