"""Error figures and tile errors: right on vectors made by hand, exact whatever the order, defined or None."""

import math

import pytest
import torch

from dsmla_bench.evals.metrics import ErrorSums
from dsmla_bench.evals.tiles import Tiles

NAN, INF = math.nan, math.inf
WHOLE = {"all": slice(0, None)}


def figures_of(x, y, clipped=None):
    x, y = (torch.tensor(values, dtype=torch.float32).reshape(1, -1) for values in (x, y))
    sums = ErrorSums({"all": slice(0, x.shape[1])})
    sums.add(x, y, None if clipped is None else torch.tensor([clipped]))
    return sums.figures()


def random_pair(tokens=64, width=48, seed=0):
    """Values over many magnitudes, with zeros, infinities and NaN on both sides."""
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=drawn) * torch.exp2(20 * torch.randn(tokens, width, generator=drawn))
    y = x * (1 + 0.1 * torch.randn(tokens, width, generator=drawn))
    x[0, :3], y[1, :3], y[2, :8] = torch.tensor([NAN, INF, 0.0]), torch.tensor([NAN, -INF, 0.0]), 0.0
    x[3, 0], y[3, 0] = 0.0, 5.0
    return x, y


def test_figures_of_a_vector_made_by_hand():
    found = figures_of([3.0, 4.0, 0.0, -1.0], [3.0, 3.0, 0.0, -1.5])
    assert found.values == 4
    assert found.rel_l2 == pytest.approx(math.sqrt(1.25 / 26))
    assert found.snr_db == pytest.approx(10 * math.log10(26 / 1.25))
    assert (found.max_abs, found.max_rel) == (1.0, 0.5)
    assert found.cosine == pytest.approx(22.5 / math.sqrt(26 * 20.25))
    assert found.gain == pytest.approx(22.5 / 26)
    assert found.mean_bias == pytest.approx(-1.5 / 4)


def test_what_is_not_finite_is_counted_and_left_out():
    found = figures_of([NAN, INF, -INF, 1.0, 2.0, 3.0], [NAN, 448.0, -INF, NAN, INF, 3.0], clipped=[False] * 6)
    assert (found.values, found.non_finite_in, found.non_finite_lost, found.non_finite_made) == (1, 3, 1, 2)
    assert (found.rel_l2, found.snr_db, found.max_abs, found.cosine) == (0.0, None, 0.0, 1.0)


def test_undefined_is_none_and_never_zero_or_nan():
    nothing = figures_of([NAN, INF], [NAN, 1.0])
    assert nothing.values == 0
    for name in ("rel_l2", "snr_db", "max_abs", "max_rel", "cosine", "gain", "mean_bias"):
        assert getattr(nothing, name) is None
    zeros = figures_of([0.0, 0.0], [0.0, 0.0])
    assert (zeros.rel_l2, zeros.snr_db, zeros.cosine, zeros.max_rel) == (None, None, None, None)
    assert (zeros.max_abs, zeros.mean_bias) == (0.0, 0.0)
    lost = figures_of([1.0, 2.0], [0.0, 0.0])
    assert (lost.rel_l2, lost.gain, lost.cosine, lost.flushed) == (1.0, 0.0, None, 2)


def test_a_clipped_value_that_is_not_finite_is_not_counted_as_clipped():
    assert figures_of([INF, 600.0, 1.0], [448.0, 448.0, 1.0], clipped=[True, True, False]).clipped == 1


def test_no_tokens_have_no_figures():
    sums = ErrorSums({"all": slice(0, 4)})
    sums.add(torch.empty(0, 4), torch.empty(0, 4))
    assert sums.figures().values == 0
    assert sums.figures().rel_l2 is None
    assert sums.buckets() == []


def test_sums_agree_with_float64_over_120_binades():
    x, y = random_pair()
    sums = ErrorSums({"left": slice(0, 16), "right": slice(16, 48)})
    sums.add(x, y)
    finite = x.isfinite() & y.isfinite()
    wide, back = x[finite].double(), y[finite].double()
    found, error = sums.figures(), back - wide
    assert found.values == int(finite.sum())
    assert found.rel_l2 == pytest.approx(float((error.square().sum() / wide.square().sum()).sqrt()), rel=1e-6)
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(wide, back, dim=0)), rel=1e-6)
    assert found.mean_bias == pytest.approx(float(error.mean()), rel=1e-6)
    assert found.values == sums.figures("left").values + sums.figures("right").values


def test_the_order_and_size_of_batches_change_nothing():
    x, y = random_pair()
    whole, pieces = ErrorSums({"all": slice(0, 48)}), ErrorSums({"all": slice(0, 48)})
    whole.add(x, y, x.abs() > 1)
    for start in (40, 0, 63, 13):
        stop = {40: 63, 0: 13, 63: 64, 13: 40}[start]
        pieces.add(x[start:stop], y[start:stop], x[start:stop].abs() > 1)
    assert pieces.figures() == whole.figures()
    assert pieces.buckets() == whole.buckets()


def test_buckets_are_binades_of_what_went_in():
    sums = ErrorSums({"all": slice(0, 6)})
    sums.add(torch.tensor([[1.0, -1.5, 2.0, 3.0, 0.0, 0.0]]), torch.tensor([[1.0, -1.0, 0.0, 3.0, 0.0, 8.0]]))
    found = {bucket.magnitude: bucket for bucket in sums.buckets()}
    assert set(found) == {0.0, 1.0, 2.0, None}
    assert (found[0.0].values, found[0.0].rel_l2, found[None].values, found[None].mean_bias) == (1, None, 1, 8.0)
    assert found[1.0].rel_l2 == pytest.approx(math.sqrt(0.25 / 3.25))
    assert found[2.0].gain == pytest.approx(9 / 13)


def tiles_of(x, y, sizes):
    tiles, start = Tiles({"all": slice(0, x.shape[1])}), 0
    for size in sizes:
        tiles.add(x[start : start + size], y[start : start + size], start)
        start += size
    return tiles.parts["all"]


def test_tile_errors_and_the_worst_of_them_with_their_inputs():
    x = torch.ones(4, 32)
    y = torch.ones(4, 32)
    y[2, 16:] = 0.5
    y[3, 0] = 0.0
    x[1, 16:] = 0.0
    found = tiles_of(x, y, [4])
    assert (found.worst[0].error, found.worst[0].token, found.worst[0].column) == (0.5, 2, 16)
    assert (found.worst[0].inputs, found.worst[0].outputs) == ((1.0,) * 16, (0.5,) * 16)
    assert (found.worst[1].error, found.worst[1].token) == (0.25, 3)
    assert (found.largest, found.undefined, int(found.histogram.sum())) == (0.5, 1, 7)
    assert found.quantile(0.5) == 0.0
    assert found.quantile(1.0) == 0.5
    assert [tiles for _, _, tiles in found.octaves()] == [5, 1, 1]


def test_tiles_do_not_depend_on_batches_and_the_first_of_equal_ones_is_the_worst():
    x, y = random_pair(tokens=96)
    y[50:90] = 0.0  # many tiles with an error of exactly 1
    x[50:90] = 1.0
    whole, pieces = tiles_of(x, y, [96]), tiles_of(x, y, [1, 50, 30, 15])
    assert whole.worst == pieces.worst
    assert torch.equal(whole.histogram, pieces.histogram)
    assert whole.undefined == pieces.undefined == 2
    ones = [tile.token for tile in whole.worst if tile.error == 1.0]
    assert ones == sorted(ones)
    assert all(low < high for low, high, _ in whole.octaves())


def test_a_part_that_is_no_multiple_of_a_tile_has_no_tiles():
    assert Tiles({"a": slice(0, 16), "b": slice(16, 21), "none": slice(21, 21)}).parts.keys() == {"a"}
