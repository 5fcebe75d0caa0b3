"""A simulated GPU beneath ``bench.cuda.CudaDevice``: torch.cuda, the harness's kernels and the profiler, on a clock.

    gpu = install(monkeypatch)
    call = gpu.operation("a", nbytes, cold_us=9.0, hot_us=4.0)      a launch that takes so long

The clock moves only by what the device does: a launch, what lies between two launches of a graph (``NODE_US``) and what
launching a graph costs (``GRAPH_US``). L2 keeps the buffers that were touched last, as many as fit. Faults:

    gpu.early     of the coming timed replays, whether each finds the device ahead of the host; later ones do not
    gpu.losing    so many sessions of the profiler miss the first separator and what is ahead of it
    gpu.clocks    MHz at the coming readings of the clock, the last one for all later ones
"""

import contextlib
from types import SimpleNamespace

import torch
from torch.autograd import DeviceType

from dsmla_bench.bench import activity, cuda, kernels
from dsmla_bench.bench.activity import Record

L2_BYTES = 16 * 2**20
NODE_US, GRAPH_US, EMPTY_US, SEPARATOR_US, FLUSH_US, PRODUCT_US = 0.25, 11.0, 0.75, 1.0, 20.0, 5.0
COPY_US = {(2048, 8): 4.0}
"""Of the copy kernel that is the fastest, by its block and warps; all others take ``SLOW_COPY_US``."""
SLOW_COPY_US, HOT_COPY_US = 6.0, 2.0


class SimulatedGpu:
    def __init__(self):
        self.now_us = 0.0
        self.records, self.graphs = [], []
        self.early, self.losing = [], 0
        self.clocks = [1980.0]
        self.handed_over_ns = []
        self._cached, self._captured, self._loaded = {}, None, False

    def do(self, name, us):
        """One launch: ``us`` is called when the device comes to it. A graph that is being captured only notes it."""
        if self._captured is not None:
            self._captured.append((name, us))
            return
        start = self.now_us
        self.now_us += us()
        self.records.append(Record(name, round(1e3 * start), round(1e3 * self.now_us)))
        self.now_us += NODE_US

    def operation(self, buffer, nbytes, cold_us, hot_us):
        """A call that touches a buffer and takes longer where that is not in L2. No capture may be the first call."""

        def call():
            assert self._loaded or self._captured is None, "what a first call loads cannot be loaded during a capture"
            self._loaded = True
            self.do("operation", lambda: hot_us if self.touch(buffer, nbytes) else cold_us)

        return call

    def touch(self, buffer, nbytes):
        """Whether the buffer was in L2; now it is, unless it is larger."""
        was_there = self._cached.pop(buffer, None) is not None
        self._cached[buffer] = nbytes
        while sum(self._cached.values()) > L2_BYTES:
            del self._cached[next(iter(self._cached))]
        return was_there

    @contextlib.contextmanager
    def capture(self, graph):
        self._captured = graph.launches = []
        yield
        self._captured = None

    def read_clock(self):
        return self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]


class Graph:
    def __init__(self, gpu):
        self._gpu, self.launches = gpu, []
        gpu.graphs.append(self)

    def replay(self):
        self._gpu.now_us += GRAPH_US
        for name, us in self.launches:
            self._gpu.do(name, us)


class Event:
    def __init__(self, gpu):
        self._gpu, self.us = gpu, None

    def record(self):
        self.us = self._gpu.now_us

    def query(self):
        return self._gpu.early.pop(0) if self._gpu.early else False

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return (later.us - self.us) / 1e3


class Kernel:
    """A kernel that is launched as Triton's are; ``us`` is called with its arguments when it runs."""

    def __init__(self, gpu, name, us):
        self._gpu, self._name, self._us = gpu, name, us

    def __getitem__(self, grid):
        return lambda *arguments, **options: self._gpu.do(self._name, lambda: self._us(*arguments, **options))


class Profile:
    """``torch.autograd.profiler.profile`` of what the simulated device does, and of one thing that the host does."""

    def __init__(self, gpu):
        self._gpu, self._first = gpu, len(gpu.records)
        self.kineto_results = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._records = self._gpu.records[self._first :]
        if self._gpu.losing:
            self._gpu.losing -= 1
            names = [record.name for record in self._records]
            del self._records[: names.index("separator_kernel") + 1]

    def events(self):
        meanwhile = self._records[len(self._records) // 2]
        host = Record("cudaGraphLaunch", meanwhile.start_ns, meanwhile.end_ns)
        return [_event(host, DeviceType.CPU), *(_event(one, DeviceType.CUDA) for one in self._records)]


def _event(record, device):
    given = {"name": record.name, "start_ns": record.start_ns, "end_ns": record.end_ns, "device_type": device}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in given.items()})


class _TorchOnCpu:
    """torch, with tensors of a CUDA device on the CPU and matrix products as launches."""

    def __init__(self, gpu):
        self._gpu = gpu

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, *_):
        return torch.device("cpu")

    def mm(self, *_, out):
        self._gpu.do("product", lambda: PRODUCT_US)


def install(monkeypatch, *, refusing=0):
    """Put the simulated GPU in CUDA's place for one test. ``refusing``: the driver's answer to a reset of L2."""
    gpu = SimulatedGpu()
    properties = SimpleNamespace(name="Simulated", major=9, minor=0, L2_cache_size=L2_BYTES, uuid="0")
    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, fake in {
        "set_device": lambda _: None,
        "get_device_properties": lambda _: properties,
        "synchronize": lambda *_: None,
        "CUDAGraph": lambda: Graph(gpu),
        "graph": gpu.capture,
        "Event": lambda enable_timing: Event(gpu),
        "Stream": lambda _: stream,
        "current_stream": lambda _: stream,
        "stream": contextlib.nullcontext,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    library = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: refusing)
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(cuda, "torch", _TorchOnCpu(gpu))
    monkeypatch.setattr(activity, "profile", lambda **_: Profile(gpu))
    for name, us in _kernels(gpu).items():
        monkeypatch.setattr(kernels, name, Kernel(gpu, name, us))
    return gpu


def _kernels(gpu):
    """Name → what a launch of it takes, µs, from its arguments."""

    def copy(source, target, count, BLOCK, num_warps):
        hot = [gpu.touch(tensor.data_ptr(), 4 * count) for tensor in (source, target)]
        return HOT_COPY_US if all(hot) else COPY_US.get((BLOCK, num_warps), SLOW_COPY_US)

    def flush(data, sink, count, BLOCK):
        gpu.touch("flush", 4 * count)
        return FLUSH_US

    def spin(elapsed, cycles):
        us = cycles / gpu.read_clock()
        elapsed[0], elapsed[1] = cycles, round(1e3 * us)
        return us

    def hand_over(nanoseconds):
        gpu.handed_over_ns.append(nanoseconds)
        return nanoseconds / 1e3

    return {
        "separator_kernel": lambda: SEPARATOR_US,
        "empty_kernel": lambda: EMPTY_US,
        "copy_kernel": copy,
        "read_kernel": flush,
        "spin_kernel": spin,
        "hand_over_kernel": hand_over,
    }
