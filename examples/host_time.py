"""How long the host is busy with one eager call of each operation: ``python examples/host_time.py``. Needs a GPU.

Three figures per operation, in µs of the host: its public function, which keeps a launch ready for calls that look
alike; the same where nothing is kept, so that every call checks its arguments, plans and launches; and a planned launch
alone, which Triton takes from arguments to a compiled kernel every time. The device works on a batch of calls while
they are issued, and each batch is short enough that no call waits for a place in the device's queue. The median of many
batches is printed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from dsmla_bench.kernels.formats import CacheFormat, get_format
from dsmla_bench.kernels.launch import Launch, device_arch
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.operations.decode import sparse_decode
from dsmla_bench.kernels.operations.fused_norm_rope import fused_norm_rope
from dsmla_bench.kernels.operations.fused_q import fused_q
from dsmla_bench.kernels.operations.gather import cp_gather_and_upconvert
from dsmla_bench.kernels.operations.write import concat_and_cache

TOKENS, BATCH, BATCHES = 8, 100, 50
PUBLIC: dict[str, Callable[[CacheFormat, Any], object]] = {
    "write": lambda fmt, i: concat_and_cache(fmt, i.kv_c, i.k_pe, i.cache, i.slot_mapping, i.scale),
    "gather": lambda fmt, i: cp_gather_and_upconvert(
        fmt, i.cache, i.block_table, i.workspace_starts, i.workspace, scale=i.scale
    ),
    "fused_norm_rope": lambda fmt, i: fused_norm_rope(i),
    "fused_q": lambda fmt, i: fused_q(i),
    "decode": lambda fmt, i: sparse_decode(fmt, i.q, i.cache, i.indices, scale=i.scale),
}


def host_us(call: Callable[[], object], batch: int = BATCH, batches: int = BATCHES) -> float:
    """Median µs that the host takes for one call, the device's own time left out."""
    call()
    found = []
    for _ in range(batches):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(batch):
            call()
        found.append((time.perf_counter() - started) / batch * 1e6)
    return statistics.median(found)


def calls(name: str, device: torch.device) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """The public function of an operation on random inputs, planning and launching, and the launch alone."""
    operation = get_operation(name)
    fmt = get_format("fp8_ds_mla" if operation.covers(get_format("fp8_ds_mla")) else "fp8")
    shape = Shape(TOKENS, requests=TOKENS, **{axis: values[0] for axis, values in operation.axes.items()})
    inputs = operation.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(0))

    def planned() -> Launch:
        launch = operation.plan(fmt, inputs, device_arch(device))
        assert launch is not None  # there are tokens
        return launch

    return lambda: PUBLIC[name](fmt, inputs), lambda: planned().run(), planned().run


def main() -> None:
    """Print a line for each operation."""
    if not torch.cuda.is_available():
        sys.exit("host_time.py: no CUDA device here; it times real launches and needs one")
    print(f"{'operation':<18}{'public function, µs':>20}{'planned anew, µs':>20}{'launch alone, µs':>20}")
    for name in PUBLIC:
        figures = [host_us(call) for call in calls(name, torch.device("cuda", 0))]
        print(f"{name:<18}" + "".join(f"{us:>20.1f}" for us in figures), flush=True)


if __name__ == "__main__":
    main()
