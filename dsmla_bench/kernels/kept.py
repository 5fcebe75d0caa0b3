"""Launches kept ready between eager calls, by everything that they depend on.

Checking arguments, planning and Triton's own way from arguments to a compiled kernel take the host longer than a small
kernel takes the device. All of it depends on what arguments look like and nothing on their values, so a public function
does it once for all calls that look alike and gives its ``KeptLaunches`` the tensors of every call:

    _KEPT = KeptLaunches("kv_c", "k_pe", "cache", "slot_mapping", "scale")
    _KEPT.launch(fmt, (kv_c, k_pe, cache, slot_mapping, scale), (), plan)

What a call looks like, its key, is the format (as the very object, which an entry holds on to), further arguments such
as a softmax scale, and of every tensor: that there is one, its shape, strides, dtype, device, and its address modulo
ADDRESS_MODULUS. A plan reads nothing else, neither a refusal: ``checks`` look at shapes, strides, types, devices and
addresses modulo an alignment, tables of configurations at sizes and the device's architecture. Neither does Triton's
choice of a compiled kernel: it looks at the types of arguments, whether addresses and whole numbers are multiples of
16, whether whole numbers are 1; and whole numbers follow from the shapes and strides. Two tensors that share an address
or are one object make no difference, as launches name the tensor that each pointer is of.

Only launches that Triton made on a CUDA device are kept. The device, its current stream, addresses and workspaces are
those of the call, also where a CUDA graph captures it. While anything listens to launches or changes kernels
(``triton.knobs``: hooks, debug, instrumentation), every call goes Triton's own way, and what was kept rests. Entries
hold no tensor; the oldest goes when there are MOST_KEPT in one place.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch

ADDRESS_MODULUS = 256
"""What alignments divide: Triton's of 16 bytes and those of formats. No thread's access is wider than 32."""
MOST_KEPT = 1024
"""Kept launches of one operation; one takes some kilobytes."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One kernel as Triton compiled and loaded it.

    ``pointers`` takes the addresses of its pointers out of those of all tensors and workspaces; ``others`` are the
    arguments after them.
    """

    kernel: Any
    grid: tuple[int, int, int]
    pointers: Callable[[list[int]], tuple[int, ...]]
    others: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class KeptLaunch:
    """A planned and compiled launch that lacks addresses alone.

    workspaces  where in ``workspace_bytes`` of memory each of its workspaces begins
    fmt         the format of its key, which keeps the object alive, and so its identity taken
    """

    fmt: CacheFormat | None
    device: torch.device
    steps: tuple[_Step, ...]
    workspaces: tuple[int, ...]
    workspace_bytes: int

    def run(self, addresses: list[int]) -> None:
        """Launch on the current stream of its device; ``addresses`` are those of all tensors, 0 where there is none."""
        if self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                self.run(addresses)
            return
        if self.workspaces:
            # Freed on return as any tensor is: whatever the stream does with the memory next comes after these kernels.
            memory = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self.device)
            first = memory.data_ptr()
            addresses = addresses + [first + offset for offset in self.workspaces]
        stream = triton.runtime.driver.active.get_current_stream(self.device.index)
        for step in self.steps:
            # The call that Triton's JIT ends in, without hooks.
            kernel, pointers = step.kernel, step.pointers(addresses)
            how = (stream, kernel.function, kernel.packed_metadata, None, None, None)
            kernel.run(*step.grid, *how, *pointers, *step.others)


class KeptLaunches:
    """The kept launches of one public function; see the module docstring. ``names`` are those of its tensors."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._kept: dict[Hashable, KeptLaunch] = {}
        self._changing = threading.Lock()

    def launch(
        self,
        fmt: CacheFormat | None,
        tensors: tuple[torch.Tensor | None, ...],
        others: tuple[Hashable, ...],
        plan: Callable[[], Launch | None],
        check_values: Callable[[], None] | None = None,
        made: tuple[torch.Tensor, ...] = (),
    ) -> None:
        """Launch what ``plan`` plans, without planning it where a call that looked alike did.

        tensors       in the order of ``names``: all that ``plan`` reads, None for one that is not given
        others        everything else that it reads
        check_values  raises ValueError for values that cannot be right, and runs once the rest is found right
        made          the last of ``names``, which the public function makes as ``tensors`` and ``others`` say
        """
        key: tuple[Any, ...] | None = None
        kept: KeptLaunch | None = None
        try:
            addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (*tensors, *made)]
            key = _key(fmt, others, tensors, addresses)
            kept = self._kept.get(key)
        except (AttributeError, RuntimeError, TypeError):
            pass  # an argument that is no tensor, or none with an address: the checks have the words for it
        if kept is None or not _is_unobserved():
            self._launch_anew(fmt, key, plan, check_values)
            return
        if check_values is not None:
            check_values()
        kept.run(addresses)

    def _launch_anew(
        self,
        fmt: CacheFormat | None,
        key: tuple[Any, ...] | None,
        plan: Callable[[], Launch | None],
        check_values: Callable[[], None] | None,
    ) -> None:
        """Plan, launch, and keep what was launched, where a later call may have it."""
        launch = plan()
        if check_values is not None:
            check_values()
        if launch is None:
            return
        compiled = launch.start()
        if key is None or None in compiled or not _is_unobserved() or not all(map(_is_plain, key[1])):
            return
        with self._changing:
            self._kept[key] = _kept(fmt, launch, compiled, self._names)
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]


def _key(
    fmt: CacheFormat | None,
    others: tuple[Hashable, ...],
    tensors: tuple[torch.Tensor | None, ...],
    addresses: list[int],
) -> tuple[Any, ...]:
    """What a call looks like. Of the addresses 0 in place of every remainder where all are multiples."""
    unaligned = functools.reduce(operator.or_, addresses) % ADDRESS_MODULUS
    return (
        id(fmt),
        others,
        unaligned and tuple([address % ADDRESS_MODULUS for address in addresses]),
        *[
            None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            for tensor in tensors
        ],
    )


def _is_plain(value: object) -> bool:
    """Whether equal ones are the same to a kernel, now and later, as those of a tensor or an array need not be."""
    return value is None or type(value) in (bool, int, float)


def _is_unobserved() -> bool:
    """Whether nothing listens to Triton's launches or changes its kernels, and none of that would notice a kept one."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    listening = getattr(enter, "calls", enter) or getattr(leave, "calls", leave)
    return not (listening or runtime.debug or triton.knobs.compilation.instrumentation_mode)


def _kept(fmt: CacheFormat | None, launch: Launch, compiled: tuple[Any, ...], names: tuple[str, ...]) -> KeptLaunch:
    """What is left of a launch without its tensors. ``names`` are those of the tensors that a call brings."""
    workspaces = {
        name: tensor
        for step in launch.steps
        for name, tensor in zip(step.names, step.args, strict=False)
        if name not in names and tensor is not None
    }
    offsets, end = [], 0
    for tensor in workspaces.values():
        offsets.append(end)
        end += -(-tensor.nbytes // ADDRESS_MODULUS) * ADDRESS_MODULUS
    order = (*names, *workspaces)
    steps = tuple(_step(step, kernel, order) for step, kernel in zip(launch.steps, compiled, strict=True))
    return KeptLaunch(fmt, launch.device, steps, tuple(offsets), end)


def _step(launch: Launch, compiled: Any, order: tuple[str, ...]) -> _Step:
    """One step without its tensors. Every kernel has two pointers or more, so that ``itemgetter`` gives a tuple."""
    given = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | dict(launch.constants)
    others = [given[name] for name in launch.kernel.arg_names[len(launch.names) :]]
    x, y, z = (*launch.grid, 1, 1)[:3]
    return _Step(
        kernel=compiled,
        grid=(x, y, z),
        pointers=operator.itemgetter(*(order.index(name) for name in launch.names)),
        others=tuple(others),
    )
