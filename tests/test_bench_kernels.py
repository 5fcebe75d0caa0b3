"""The harness's own kernels, interpreted where there is no GPU: a copy is a copy, and a flush only reads."""

import pytest
import torch

from dsmla_bench.bench.kernels import COPY_CONFIGURATIONS, READ_BLOCK, Flusher, copy


@pytest.mark.parametrize(("block", "warps"), COPY_CONFIGURATIONS)
def test_a_copy_takes_every_element_and_nothing_beyond(device, block, warps):
    count = 2 * block + 3
    source = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    room = torch.full((count + block,), -7, dtype=torch.int32, device=device)
    copy(source, room[:count], block, warps)()
    assert torch.equal(room[:count], source)
    assert (room[count:] == -7).all()


def test_a_flush_reads_twice_the_l2_and_writes_nothing(device):
    l2_bytes = 3 * READ_BLOCK + 4
    flush = Flusher(l2_bytes, device)
    before = flush._data.clone()
    flush()
    assert 4 * flush._data.numel() >= 2 * l2_bytes
    assert torch.equal(flush._data, before)
    assert flush._sink.item() == 0
