"""Check and time the CUDA C++ decode against the package's Triton kernel: ``python examples/cuda_decode/measure.py``.

Needs a GPU of compute capability 9.0 and ``nvcc`` in PATH. ``attend.cu`` is compiled into a temporary folder and called
by ctypes. Every case is first compared with the reference, by the tolerances of the operation decode; a case beyond
them ends the script. Then µs of one launch are printed for 16 heads and 2048 indices a query, cold L2, method graph.
"""

import ctypes
import dataclasses
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.bench import gate
from dsmla_bench.bench.cuda import CudaDevice
from dsmla_bench.kernels.formats import CacheFormat, get_format
from dsmla_bench.kernels.launch import Launch, ceil_div
from dsmla_bench.kernels.operations import Shape, decode, get_operation
from dsmla_bench.kernels.operations.pages import data_stride

SOURCE = Path(__file__).with_name("attend.cu")
FORMATS = ("fp8_ds_mla:pow2", "nvfp4_ds_mla:rn")
TILE_ROWS, RANK, METHOD = 64, 512, "graph"
SPLITS = {128: 1, 32: 4, 8: 8, 1: 16}
"""Batch → programs that share the rows of a query."""
ODD_CASES = ((3, 5, 100, 1, 30), (2, 16, 64, 1, 10), (2, 1, 1, 1, 0), (2, 16, 200, 2, 200), (4, 16, 1000, 16, 500))
"""Batch, heads, topk, splits, and how many indices of a query are made -1."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Arguments(ctypes.Structure):
    """The structure of the same name in ``attend.cu``, in the same order."""

    _fields_ = (
        *((name, _POINTER) for name in ("q", "cache", "indices", "sink", "out", "lse")),
        ("softmax_scale", ctypes.c_float),
        *((name, _INT) for name in ("heads", "topk", "split_rows", "splits", "queries")),
        *((name, ctypes.c_uint32) for name in ("capacity", "block_size")),
        *((name, _LONG) for name in ("q_stride", "q_head_stride", "indices_stride", "page_stride", "row_stride")),
    )


@dataclasses.dataclass(frozen=True)
class CudaCall:
    """A launch that is ready, the combination of its parts, and the tensors that its pointers lead into."""

    function: Any
    arguments: Arguments
    combination: Launch | None
    tensors: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch on the current stream; RuntimeError if CUDA refuses."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if code := self.function(ctypes.byref(self.arguments), stream):
            raise RuntimeError(f"attend.cu was not launched: CUDA error {code}")
        if self.combination is not None:
            self.combination.run()


def compiled(folder: str) -> ctypes.CDLL:
    """The library made of ``attend.cu``. torch has loaded the CUDA runtime that it calls."""
    library = Path(folder) / "attend.so"
    options = ["-O3", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none"]
    subprocess.run(["nvcc", *options, "-o", str(library), str(SOURCE)], check=True)
    return ctypes.CDLL(str(library))


def bound(library: ctypes.CDLL, fmt: CacheFormat, inputs: decode.DecodeInputs, splits: int) -> CudaCall:
    """The call for inputs on the GPU; ``splits`` programs at most share a query's rows, by whole tiles."""
    heads, topk = inputs.q.shape[2], inputs.indices.shape[2]
    queries = inputs.lse.numel() // heads
    split_rows = ceil_div(ceil_div(topk, TILE_ROWS), splits) * TILE_ROWS
    splits = ceil_div(topk, split_rows)
    out, lse, combination, sink = inputs.out, inputs.lse, None, inputs.sink
    if splits > 1:
        out = torch.empty(splits, queries, heads, RANK, dtype=torch.float32, device=inputs.q.device)
        lse = torch.empty(splits, queries, heads, dtype=torch.float32, device=inputs.q.device)
        # Private, and wanted as it is: parts are put together by the launch that the Triton kernel uses too.
        combination, sink = decode._combination(inputs, out, lse), None
    pointers = [t if t is None else t.data_ptr() for t in (inputs.q, inputs.cache, inputs.indices, sink, out, lse)]
    q, cache = inputs.q.flatten(0, 1), inputs.cache
    scale = inputs.softmax_scale * math.log2(math.e)
    sizes = (heads, topk, split_rows, splits, queries, cache.shape[0] * cache.shape[1], cache.shape[1])
    strides = (*q.stride()[:2], inputs.indices.flatten(0, 1).stride(0), cache.stride(0), data_stride(fmt, cache))
    function = getattr(library, f"dsmla_attend_{fmt.name}")
    return CudaCall(function, Arguments(*pointers, scale, *sizes, *strides), combination, (inputs, out, lse))


def made(fmt: CacheFormat, shape: Shape, device: torch.device, seed: int, missing: int = 0) -> decode.DecodeInputs:
    """Random inputs; with ``missing`` that many indices a query are -1, one is out of range, and heads have sinks."""
    inputs = get_operation("decode").make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(seed))
    if not missing:
        return inputs
    indices = inputs.indices.clone()
    indices.view(-1)[torch.randperm(indices.numel(), device=device)[: missing * shape.tokens]] = -1
    indices.view(-1)[0] = 2**31 - 1
    return dataclasses.replace(inputs, indices=indices, sink=torch.randn(shape.heads, device=device))


def check(library: ctypes.CDLL, fmt: CacheFormat, inputs: decode.DecodeInputs, splits: int) -> None:
    """End the script if the result is beyond the operation's tolerance of the reference's."""
    operation = get_operation("decode")
    outputs = operation.outputs(inputs)
    expected = gate.outputs_of(operation.reference(fmt, inputs), outputs)
    found = gate.outputs_of(bound(library, fmt, inputs, splits), outputs)
    if reason := gate.compare(operation, found, expected).reason:
        sys.exit(f"measure.py: {fmt.key}, q of {list(inputs.q.shape)}, {splits} splits: {reason}")


def times(library: ctypes.CDLL, fmt: CacheFormat, device: CudaDevice, batch: int) -> tuple[float, float]:
    """Median µs of the Triton kernel and of the CUDA one, after a check."""
    operation = get_operation("decode")
    shape = Shape(batch, 1, 64, True, heads=16, topk=2048, queries=1)
    traffic = operation.traffic(fmt, shape)
    sets: dict[int, decode.DecodeInputs] = {}

    def inputs(index: int) -> decode.DecodeInputs:
        if index not in sets:
            sets[index] = made(fmt, shape, device.torch_device, index)
        return sets[index]

    def us(bind: Callable[[int], Callable[[], None]]) -> float:
        timing = device.time(bind, traffic.bytes_read + traffic.bytes_written, "cold", [METHOD])
        return statistics.median(timing.samples[METHOD])

    check(library, fmt, inputs(0), SPLITS[batch])
    triton = us(lambda index: operation.plan(fmt, inputs(index), device.arch.number).run)
    return triton, us(lambda index: bound(library, fmt, inputs(index), SPLITS[batch]))


def main() -> None:
    """Check the odd cases, then print a line for each format and batch."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(0) != (9, 0):
        sys.exit("measure.py: no CUDA device of compute capability 9.0 here; the kernel is for sm_90a and needs one")
    if shutil.which("nvcc") is None:
        sys.exit("measure.py: no nvcc in PATH; it compiles attend.cu")
    device = CudaDevice(0)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        print(f"{'format':<20}{'batch':>6}{'Triton, µs':>14}{'CUDA, µs':>14}")
        for fmt in map(get_format, FORMATS):
            for batch, heads, topk, splits, missing in ODD_CASES:
                shape = Shape(batch, 1, 64, True, heads=heads, topk=topk, queries=1)
                check(library, fmt, made(fmt, shape, device.torch_device, batch, missing), splits)
            for batch in SPLITS:
                triton, cuda = times(library, fmt, device, batch)
                print(f"{fmt.name:<20}{batch:>6}{triton:>14.1f}{cuda:>14.1f}", flush=True)


if __name__ == "__main__":
    main()
