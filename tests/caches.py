"""Caches and tokens for any format: in the geometry that it stores, with every byte of the pages poisoned; and hex."""

import torch

from dsmla_bench.kernels.formats import Geometry
from dsmla_bench.kernels.operations.pages import load_rows, new_cache

POISON = 0xAA


def hex_of(data):
    """Bytes of any shape as golden ones are written: ``7E FE``."""
    return " ".join(f"{int(byte):02X}" for byte in data.flatten())


def geometry_of(fmt):
    """The geometry that a format stores, DeepSeek-V3.2's where it stores any."""
    return fmt.geometry or Geometry()


def parts(fmt, values):
    """kv_c and k_pe out of values [T, 512 + 64]: all of the first 512 columns that the format has, and the last 64."""
    return values[:, : geometry_of(fmt).kv_lora_rank], values[:, 512:]


def pages_of(cache):
    """The pages as runs of bytes [blocks, page bytes], padding included."""
    stride = cache.stride(0)
    return cache.as_strided((len(cache), stride), (stride, 1))


def poisoned_cache(fmt, blocks, block_size, device):
    """A cache of which every byte is POISON."""
    cache = new_cache(fmt, blocks, block_size, device, geometry_of(fmt))
    pages_of(cache).fill_(POISON)
    return cache


def rows_in(fmt, cache):
    """The rows of all slots in order, uint8 [slots, row_bytes]."""
    slots = torch.arange(cache.shape[0] * cache.shape[1], device=cache.device)
    return load_rows(fmt, cache, slots // cache.shape[1], slots % cache.shape[1])
