"""Run as a script, in a process that does not interpret: public functions that keep launches, beside none kept.

    python keeping.py OPERATION SEED

Nothing runs and nothing is compiled: a driver and compiled kernels stand in, behind Triton's own choice of a kernel.
Many times, one argument of a call that was seen before is changed at random; then the call is made as it comes, and
once more where no launch is kept. Both must end in the same kernel, chosen by Triton, with the same grid, stream
and arguments, or in the same refusal. What a call sees of the device is looked at one property at a time after that.
Prints JSON: how many calls were made, refused, and served without asking Triton.
"""

import collections
import contextlib
import dataclasses
import json
import math
import random
import sys
import unittest.mock
from typing import ClassVar

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from dsmla_bench.kernels import kept
from dsmla_bench.kernels.formats import Geometry, get_format
from dsmla_bench.kernels.operations import Shape, decode, fused_norm_rope, fused_q, gather, get_operation, write

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
BF16, FP8, DS_MLA, NVFP4 = map(get_format, ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"))
TYPES = (torch.bfloat16, torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.float8_e4m3fn)
STEPS = 300
LEAST_ADDRESS = 2**24  # some systems begin their heap below 2^32; sizes and strides here are far smaller


class OnDevice(torch.Tensor):
    """A tensor in the CPU's memory that says it is elsewhere."""

    home = FIRST

    @property
    def device(self):
        return self.home


def on(tensor, device):
    tensor = tensor.as_subclass(OnDevice)
    tensor.home = device
    return tensor


class StandInDriver:
    """What Triton and torch ask a driver about where they are."""

    current, stream = 0, 1234

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return self.current

    def get_current_stream(self, device):
        return 10000 * device + self.stream

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, torch.device(device).index
        yield
        self.current = before


class StandInKernel:
    """A compiled kernel for one specialisation, which writes down its launches. Constants are not arguments of it."""

    packed_metadata, function = (4, 1, 0), 77
    launches: ClassVar[list] = []

    def __init__(self, name, signature):
        self.name = name
        self.takes = [kind != "constexpr" for kind in signature.values()]

    def launch_metadata(self, grid, stream, *args):
        return "metadata"

    def run(self, x, y, z, stream, function, metadata, launch_metadata, enter, leave, *args):
        assert (function, metadata) == (self.function, self.packed_metadata)
        args = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
        assert len(args) == len(self.takes), f"{self.name} takes {len(self.takes)} arguments, found {len(args)}"
        used = tuple(arg for arg, taken in zip(args, self.takes, strict=True) if taken)
        StandInKernel.launches.append((id(self), (x, y, z), stream, DRIVER.current, used))


DRIVER = StandInDriver()
ASKED = collections.Counter()
real_empty, real_run = torch.empty, JITFunction.run


def aligned_empty(*size, device, dtype=torch.float32):
    """``torch.empty`` as on a GPU, where memory begins at multiples of 512."""
    size = size if isinstance(size[0], int) else size[0]
    memory = real_empty(math.prod(size) * dtype.itemsize + 512, dtype=torch.uint8)
    start = -memory.data_ptr() % 512
    return on(memory[start : start + math.prod(size) * dtype.itemsize].view(dtype).view(size), device)


def stand_in_compile(self, key, signature, device, *rest):
    kernel = StandInKernel(self.fn.__name__, signature)
    self.device_caches[device][0][key] = kernel
    return kernel


def counted_run(self, *args, **kwargs):
    ASKED["triton"] += 1
    return real_run(self, *args, **kwargs)


# The calls


def write_call(fmt, inputs, others):
    return write.concat_and_cache(fmt, *vars(inputs).values())


def gather_call(fmt, i, others):
    tensors = (i.cache, i.block_table, i.workspace_starts, i.workspace, i.seq_starts, i.scale)
    return gather.cp_gather_and_upconvert(fmt, *tensors, geometry=others.get("geometry", i.geometry))


def decode_call(fmt, i, others):
    keywords = {"geometry": i.geometry, "sink": i.sink, "scale": i.scale} | others
    return decode.sparse_decode(fmt, i.q, i.cache, i.indices, **keywords)


def fused_norm_rope_call(fmt, inputs, others):
    return fused_norm_rope.fused_norm_rope(dataclasses.replace(inputs, fmt=fmt, **others))


def fused_q_call(fmt, inputs, others):
    return fused_q.fused_q(dataclasses.replace(inputs, **others))


CALLS = {
    "write": (write, write_call, (BF16, FP8, DS_MLA, NVFP4), [{}]),
    "gather": (gather, gather_call, (BF16, FP8, DS_MLA), [{}, {"geometry": Geometry(256, 64)}]),
    "decode": (decode, decode_call, (FP8, DS_MLA), [{}, {"softmax_scale": 0.5}, {"softmax_scale": 1}]),
    "fused_norm_rope": (
        fused_norm_rope,
        fused_norm_rope_call,
        (BF16, FP8, DS_MLA),
        [{}, {"index_interleaved": True}, {"rms_eps": 1e-5}, {"index_eps": 1e-5}],
    ),
    "fused_q": (
        fused_q,
        fused_q_call,
        (BF16, FP8),
        [{}, {"index_interleaved": True}, {"index_softmax_scale": 0.5}, {"index_head_scale": 0.25}],
    ),
}
AXES = {
    "write": [{}],
    "gather": [{"requests": 3}],
    "decode": [{"heads": 16, "topk": topk, "queries": queries} for topk in (40, 256) for queries in (1, 2)],
    "fused_norm_rope": [{"variant": name} for name in ("indexer", "no-indexer", "indexer+kv", "no-indexer+kv")],
    "fused_q": [{"variant": name, "heads": 4} for name in ("indexer", "no-indexer")],
}


@dataclasses.dataclass(frozen=True)
class Call:
    fmt: object
    inputs: object
    others: dict


def first_calls(name):
    """Calls as they should be: every format, variant and a few sizes, tensors on the first device."""
    operation, formats = get_operation(name), CALLS[name][2]
    for fmt in formats:
        for axes in AXES[name]:
            for tokens in (1, 5, 16):
                shape = Shape(tokens, **{"requests": 1, **axes}, block_size=4)
                inputs = operation.make_inputs(fmt, shape, torch.device("cpu"), torch.Generator())
                yield Call(fmt, everywhere(inputs, FIRST), {})


def everywhere(inputs, device):
    """The inputs with every tensor on ``device``."""
    moved = {name: on(value, device) for name, value in tensors_of(inputs).items()}
    return dataclasses.replace(inputs, **moved)


def tensors_of(inputs):
    return {name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)}


def changed(call, name, chance):
    """The call with one thing about it changed."""
    what = chance.randrange(12)
    if what == 0:
        return dataclasses.replace(call, others=chance.choice(CALLS[name][3]))
    if what == 1:
        return dataclasses.replace(call, fmt=chance.choice(CALLS[name][2]))
    if what == 2:
        return dataclasses.replace(call, inputs=everywhere(call.inputs, chance.choice((FIRST, SECOND))))
    tensors = tensors_of(call.inputs)
    field = chance.choice([*tensors, *(field for field, value in vars(call.inputs).items() if value is None)])
    if field not in tensors or chance.random() < 0.1:
        value = chance.choice([None, 0.3, *tensors.values()])
    else:
        value = changed_tensor(tensors[field], chance)
    return dataclasses.replace(call, inputs=dataclasses.replace(call.inputs, **{field: value}))


def changed_tensor(tensor, chance):
    """A tensor like it, with another number of rows, strides, address, type or device; or on fresh memory alone."""
    what, plain = chance.randrange(7), tensor.as_subclass(torch.Tensor)
    shape, dtype, device = list(plain.shape), plain.dtype, tensor.device
    offset, pad = 0, 0
    if what == 0 and shape:
        axis = chance.randrange(len(shape))
        shape[axis] = max(0, shape[axis] + chance.choice((-1, 1, 16)))
    elif what == 1:
        pad = chance.choice((1, 8, 16))
    elif what == 2:
        offset = chance.choice((1, 2, 4, 8, 16, 128))
    elif what == 3:
        dtype = chance.choice(TYPES)
    elif what == 4:
        device = chance.choice((FIRST, SECOND, torch.device("cpu")))
    elif what == 5 and len(shape) > 1:
        return on(plain.transpose(0, 1).contiguous().transpose(0, 1), device)
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * max(size, 1) + pad
    memory = real_empty(offset + step + 512, dtype=dtype)
    start = (-memory.data_ptr() % 256) // memory.element_size()
    return on(memory.as_strided(shape, strides, start + offset), device)


def outcome(name, call):
    """What a call ends in: its launches, addresses that it made itself numbered in order of appearance, or words."""
    function = CALLS[name][1]
    StandInKernel.launches.clear()
    known = {tensor.data_ptr() for tensor in tensors_of(call.inputs).values()}
    try:
        result = function(call.fmt, call.inputs, call.others)
    except Exception as error:  # whatever it is, it must be the same both times
        return type(error).__name__, str(error)
    made = {tensor.data_ptr(): f"result {place}" for place, tensor in enumerate(result or ())}

    def named(value):
        if not isinstance(value, int) or value < LEAST_ADDRESS or value in known:
            return value
        return made.setdefault(value, f"workspace {len(made)}, {value % 16} from a multiple of 16")

    return [(*launch, tuple(map(named, arguments))) for *launch, arguments in StandInKernel.launches]


def check_walk(name, chance):
    """The walk of random changes that the module docstring tells of."""
    module, seen, counts = CALLS[name][0], [*first_calls(name)], collections.Counter()
    keeping = module._KEPT
    for step in range(STEPS):
        call = chance.choice(seen)
        if chance.random() < 0.7:
            call = changed(call, name, chance)
        ASKED.clear()
        found = outcome(name, call)
        hit = not ASKED and isinstance(found, list) and found
        with unittest.mock.patch.object(module, "_KEPT", kept.KeptLaunches(*keeping._names)):
            expected = outcome(name, call)
        assert found == expected, f"step {step}: {found}\nplanned anew: {expected}\nin {call}"
        counts.update(calls=1, refused=isinstance(found, tuple), served=bool(hit))
        if isinstance(found, list):
            seen.append(call)
    assert not any(map(holds_tensor, keeping._kept.values())), "a kept launch holds a tensor"
    return counts


def holds_tensor(entry):
    return any(isinstance(value, torch.Tensor) for step in entry.steps for value in step.others)


def check_surroundings(name):
    """A kept launch is on the device of its tensors and the stream of the moment, and rests while someone listens."""
    call = next(iter(first_calls(name)))
    outcome(name, call)
    ASKED.clear()
    first = outcome(name, call)
    assert first, "nothing was launched"
    assert not ASKED, "a second call asked Triton"
    DRIVER.stream, DRIVER.current = 4321, 1
    other = outcome(name, call)
    assert {(launch[2], launch[3]) for launch in other} == {(4321, 0)}
    assert DRIVER.current == 1
    DRIVER.stream, DRIVER.current = 1234, 0
    heard = []
    for listen, quiet in (
        (knobs.runtime.launch_enter_hook.add, knobs.runtime.launch_enter_hook.remove),
        (knobs.runtime.launch_exit_hook.add, knobs.runtime.launch_exit_hook.remove),
    ):
        ASKED.clear()
        listen(heard.append)
        assert outcome(name, call) == first
        assert ASKED["triton"] == len(first), "Triton was not asked while a hook listened"
        quiet(heard.append)
    ASKED.clear()
    assert outcome(name, call) == first
    assert not ASKED, "Triton was asked after the hooks had gone"


def check_bound(name):
    """The oldest goes."""
    module = CALLS[name][0]
    with unittest.mock.patch.object(kept, "MOST_KEPT", 2):
        module._KEPT._kept.clear()
        calls = [*first_calls(name)][:3]
        for call in calls:
            outcome(name, call)
        assert len(module._KEPT._kept) == 2
        ASKED.clear()
        outcome(name, calls[2])
        assert not ASKED
        outcome(name, calls[0])
        assert ASKED


def main(name, seed):
    driver.set_active(DRIVER)
    patches = (
        (JITFunction, "_do_compile", stand_in_compile),
        (JITFunction, "run", counted_run),
        (torch, "empty", aligned_empty),
        (torch.cuda, "current_device", DRIVER.get_current_device),
        (torch.cuda, "device", DRIVER.device),
        (torch.cuda, "get_device_capability", lambda device: (9, 0)),
    )
    made = [*first_calls(name)]
    assert made
    with contextlib.ExitStack() as stack:
        for owner, attribute, value in patches:
            stack.enter_context(unittest.mock.patch.object(owner, attribute, value))
        counts = check_walk(name, random.Random(int(seed)))
        check_surroundings(name)
        check_bound(name)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
