"""What the sweep feeds to kernels: random, reproducible, and never the same place twice."""

import itertools

import pytest
import torch

from dsmla_bench.kernels.formats import default_formats, get_format
from dsmla_bench.kernels.operations import Shape, get_operation

SHAPES = [Shape(1), Shape(7, 3, 4, True), Shape(65, 8, 64, True), Shape(64, 1, 16), Shape(100, 100, 1, True)]


def made(operation: str, shape: Shape, device: torch.device, seed: int = 0, key: str = "fp8_ds_mla"):
    generator = torch.Generator(device).manual_seed(seed)
    return get_operation(operation).make_inputs(get_format(key), shape, device, generator)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slots_and_pages_are_unique_and_in_the_cache(device, shape):
    """Case B1's hazard: a place that is used twice is warm the second time."""
    write, gather = made("write", shape, device), made("gather", shape, device)
    slots = write.slot_mapping
    assert len(slots.unique()) == shape.tokens
    assert 0 <= int(slots.min()) <= int(slots.max()) < write.cache.shape[0] * write.cache.shape[1]
    starts = [*gather.workspace_starts.tolist(), shape.tokens]
    pages = [-(-(end - start) // shape.block_size) for start, end in itertools.pairwise(starts)]
    used = torch.cat([row[:count] for row, count in zip(gather.block_table, pages, strict=True)])
    assert sorted(used.tolist()) == list(range(len(gather.cache)))


@pytest.mark.parametrize("operation", ["write", "gather"])
def test_inputs_are_random_and_reproducible_from_their_seed(device, operation):
    """Case B9: zeros are kinder to power and caches than data is."""
    shape = Shape(64, 4, 16, True)
    outputs = get_operation(operation).outputs
    names = [
        name for name in vars(made(operation, shape, device)) if name not in outputs(made(operation, shape, device))
    ]
    first, again, other = (made(operation, shape, device, seed) for seed in (1, 1, 2))
    tensors = [name for name in names if isinstance(getattr(first, name), torch.Tensor)]
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in tensors)
    data = first.kv_c if operation == "write" else first.cache
    assert not torch.equal(data, other.kv_c if operation == "write" else other.cache)
    assert float((data == 0).float().mean()) < 0.1


@pytest.mark.parametrize("fmt", default_formats(), ids=lambda fmt: fmt.key)
def test_traffic_is_what_the_inputs_hold(device, fmt):
    """Every input once, every output once: rows, values, slots, table entries, starts."""
    shape = Shape(96, 3, 16, True)
    write, gather = (get_operation(name).traffic(fmt, shape) for name in ("write", "gather"))
    assert (write.bytes_read, write.bytes_written) == (96 * (1152 + 8), 96 * fmt.row_bytes())
    assert (gather.bytes_read, gather.bytes_written) == (96 * fmt.row_bytes() + 4 * (6 + 3), 96 * 1152)
