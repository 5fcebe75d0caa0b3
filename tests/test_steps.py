"""The tolerance in steps: what a different order of a sum may do to an output passes, anything more does not."""

import pytest
import torch

from dsmla_bench.kernels.operations.steps import BEYOND, one_step, steps_apart

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def codes(values, dtype=E4M3):
    return torch.tensor(values, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize(
    ("found", "expected", "apart"),
    [
        (codes([0x38, 0x39, 0xB8, 0x80, 0x01, 0x81]), codes([0x38, 0x38, 0xB9, 0x00, 0x81, 0x00]), [0, 1, 1, 0, 2, 1]),
        (codes([0x7F, 0x7E, 0x7F]), codes([0x7E, 0x7F, 0xFF]), [BEYOND, BEYOND, 254]),
        (codes([0x7F, 0x80], E8M0), codes([0x80, 0x7E], E8M0), [1, 2]),
        (codes([0x21, 0x88, 0x12], torch.uint8), codes([0x20, 0x00, 0x32], torch.uint8), [1, 0, BEYOND]),
        (torch.tensor([1.0, 1.0, -2.0]).bfloat16(), torch.tensor([1.0, 1.0078125, -2.0]).bfloat16(), [0, 1, 0]),
        (torch.tensor([1.0, 1.0, 1.0, 3.0]), torch.tensor([1.0000005, 2.0, 0.5, 1.0]), [0, 1, 1, BEYOND]),
        (torch.tensor([-1, -1]), torch.tensor([-1, 0]), [0, BEYOND]),
    ],
)
def test_steps_are_counted_in_codes_of_the_type(found, expected, apart):
    assert steps_apart(found, expected).tolist() == apart


def moved(count, size=100_000, by=1):
    """bf16 ones, ``count`` of which are ``by`` steps further."""
    bits = torch.ones(size).bfloat16().view(torch.int16)
    bits[:count] += by
    return {"out": bits.view(torch.bfloat16)}


def test_one_step_in_few_places_passes_and_no_more():
    assert one_step(moved(0), moved(0)) is None
    assert one_step(moved(13), moved(0)) is None
    assert one_step(moved(14), moved(0)) == "14 of 100000 values of out are one step away, more than 1 in 10000"
    assert one_step(moved(1, by=2), moved(0)) == "1 of 100000 values of out are more than one step away"
    assert one_step(moved(3, size=5), moved(0, size=5)) is None, "small outputs have three to spare"
    assert one_step(moved(4, size=5), moved(0, size=5)) is not None


def test_codes_move_further_only_where_their_scale_moved():
    """A scale twice as large moves every e4m3 code of its row by eight."""
    expected = {"codes": codes([0x40] * 8).view(2, 4), "scales": torch.tensor([[1.0], [1.0]])}
    found = {"codes": codes([0x40] * 5 + [0x38] * 3).view(2, 4), "scales": torch.tensor([[1.0], [2.0]])}
    scales = {"codes": "scales"}
    assert one_step(found, expected, scales) is None
    assert "3 of 8 values of codes are more than one step" in one_step(found, expected)
    assert "of codes" in one_step({**found, "scales": expected["scales"]}, expected, scales)
    assert "of scales are more than one step" in one_step(
        {**expected, "scales": 3 * expected["scales"]}, expected, scales
    )
