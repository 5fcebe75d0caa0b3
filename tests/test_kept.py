"""Launches kept between eager calls: never another kernel, other arguments or another refusal than planned anew."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from keeping import AXES, CALLS
from processes import run_python
from triton.runtime import JITFunction

from dsmla_bench.kernels import formats
from dsmla_bench.kernels.formats import all_formats
from dsmla_bench.kernels.interpreter import is_interpreting
from dsmla_bench.kernels.kept import ADDRESS_MODULUS, KeptLaunches
from dsmla_bench.kernels.operations import Shape, all_operations, get_operation

OPERATIONS = tuple(CALLS)


def made(name, device, tokens=8, seed=0, fmt=None, axes=None):
    """Inputs of an operation, and a call of its public function on them; returns what that returns."""
    operation, (_, function, known, _) = get_operation(name), CALLS[name]
    fmt, axes = fmt or known[-1], {"requests": 1, **(axes or AXES[name][0])}
    inputs = operation.make_inputs(fmt, Shape(tokens, **axes), device, torch.Generator(device).manual_seed(seed))
    return inputs, lambda: function(fmt, inputs, {})


def outputs(name, inputs, returned):
    """The bytes that a call writes: what it returned, or the outputs that its inputs name."""
    return [tensor.view(torch.uint8) for tensor in returned or get_operation(name).outputs(inputs).values()]


def poison(tensors):
    for tensor in tensors:
        tensor.fill_(0x5A)


def ran(name, inputs, call):
    """Copies of what a call leaves in outputs that were poisoned before."""
    poison(outputs(name, inputs, None))
    return [tensor.clone() for tensor in outputs(name, inputs, call())]


def same(found, expected):
    return all(torch.equal(got, wanted) for got, wanted in zip(found, expected, strict=True))


def test_every_operation_is_called_here():
    assert {operation.name for operation in all_operations()} == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kept_launch_is_the_one_that_would_be_planned_anew(name):
    """300 random changes of one argument: same kernel by Triton's own rules, same arguments, or same refusal."""
    done = run_python(Path(__file__).with_name("keeping.py"), name, "0")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["refused"] > 30
    assert counts["served"] > 60, "hardly any call was served by a kept launch"


@pytest.mark.parametrize("fmt", all_formats(), ids=lambda fmt: fmt.key)
def test_the_key_tells_addresses_apart_as_far_as_a_format_does(fmt):
    geometry = fmt.geometry or formats.Geometry()
    assert ADDRESS_MODULUS % fmt.alignment(geometry) == 0


@pytest.mark.skipif(not is_interpreting(), reason="kernels compile here")
def test_nothing_is_kept_where_triton_interprets(device):
    for name in ("write", "gather"):
        _, call = made(name, device)
        call()
        assert not CALLS[name][0]._KEPT._kept


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_kept_launches_write_the_same_bytes(name, device, monkeypatch):
    """Over formats, variants, sizes and fresh tensors, each size twice, beside a place that has kept nothing."""
    for fmt, axes in itertools.product(CALLS[name][2], AXES[name]):
        for seed, tokens in enumerate((1, 8, 1, 40, 8, 40)):
            inputs, call = made(name, device, tokens, seed, fmt, axes)
            found = ran(name, inputs, call)
            with monkeypatch.context() as patch:
                patch.setattr(CALLS[name][0], "_KEPT", KeptLaunches(*CALLS[name][0]._TENSORS))
                expected = ran(name, inputs, call)
            assert same(found, expected), f"{fmt.key} {axes} {tokens}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_second_call_does_not_ask_triton(name, device, monkeypatch):
    inputs, call = made(name, device)
    expected = ran(name, inputs, call)
    monkeypatch.setattr(JITFunction, "run", None)
    assert same(ran(name, *made(name, device)), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_graph_captures_a_kept_launch(name, device):
    """Recorded on the capturing stream, with workspaces of its own: a replay does the work again."""
    inputs, call = made(name, device)
    expected = ran(name, inputs, call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        returned = call()
    poison(outputs(name, inputs, returned))
    graph.replay()
    assert same(outputs(name, inputs, returned), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "decode"])  # its results are new every time
def test_a_kept_launch_is_on_the_stream_of_the_moment(name, device):
    """On a stream that has to wait, the work is not done before its turn."""
    inputs, call = made(name, device)
    expected = ran(name, inputs, call)
    poison(outputs(name, inputs, None))

    def is_untouched():
        return all(bool((tensor == 0x5A).all()) for tensor in outputs(name, inputs, None))

    assert is_untouched()  # loads what looks, which waits for the device the first time
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)
        call()
    assert is_untouched()
    stream.synchronize()
    assert same(outputs(name, inputs, None), expected)
