"""The correctness gate: what counts as different, and which operations may differ at all."""

import dataclasses

import pytest
import torch

from dsmla_bench.bench import gate
from dsmla_bench.kernels.operations import get_operation

EXPECTED = {"out": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "codes": torch.tensor([3], dtype=torch.uint8)}


def written(**changes: torch.Tensor):
    """What a kernel left that wrote ``EXPECTED``, but for the changes."""
    outputs = {name: torch.empty_like(tensor) for name, tensor in EXPECTED.items()}

    def run() -> None:
        for name, tensor in (EXPECTED | changes).items():
            outputs[name].copy_(tensor)

    return gate.outputs_of(run, outputs)


def test_equal_bytes_are_right_and_counted():
    assert gate.compare(get_operation("write"), written(), EXPECTED) == gate.GateResult(5, 0)


def test_one_differing_byte_is_a_fault_that_says_where():
    found = gate.compare(get_operation("write"), written(codes=torch.tensor([7], dtype=torch.uint8)), EXPECTED)
    assert (found.bytes_compared, found.bytes_differing) == (5, 1)
    assert found.reason == "1 of 5 bytes differ (20.00%); first: codes[0] is 0x07, expected 0x03"


def test_a_byte_that_is_not_written_is_a_fault():
    outputs = {"codes": EXPECTED["codes"].clone()}
    assert gate.outputs_of(lambda: None, outputs)["codes"].tolist() == [gate.POISON]


@pytest.mark.parametrize(("moved", "right"), [(2.015625, True), (2.5, False)])
def test_an_operation_with_a_tolerance_judges_itself_and_its_differences_are_counted(moved, right):
    def tolerance(found, expected):
        worst = float((found["out"].float() - expected["out"].float()).abs().max())
        return None if worst < 0.1 else f"out is off by {worst}"

    operation = dataclasses.replace(get_operation("write"), tolerance=tolerance)
    result = gate.compare(operation, written(out=torch.tensor([1.0, moved]).bfloat16()), EXPECTED)
    assert result.bytes_differing == 1
    assert result.reason is None if right else result.reason.startswith("out is off by 0.5; 1 of 5 bytes differ")
