"""What an error run measures: known values, probes, attention and readers; the run on disk, and its report."""

import dataclasses
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from error_runs import OURS, run_of
from processes import run_python

from dsmla_bench.evals import attention
from dsmla_bench.evals.codec import Codec, calibrate, why_not
from dsmla_bench.evals.data import Synthetic
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.evals.readers import ReaderErrors
from dsmla_bench.kernels.formats import Geometry, all_formats, get_format
from dsmla_bench.kernels.providers import load_providers
from dsmla_bench.reports.error_report import tables_of
from dsmla_bench.reports.renderings import to_text
from dsmla_bench.reports.report import write_report
from dsmla_bench.results import RunError

CPU = torch.device("cpu")


def only(frame, **values):
    for name, value in values.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Standard normal latents and ones a thousand times smaller, 4096 tokens of each, through every format of ours."""
    folder = tmp_path_factory.mktemp("known")
    return run_of(folder, sigmas=(1.0, 0.001), tokens=4096, readers=True)


@pytest.fixture(scope="module")
def attended(tmp_path_factory):
    """What attention sees of 600 standard normal latents."""
    return run_of(tmp_path_factory.mktemp("attended"), tokens=600, attention=True)


# Known values


@pytest.mark.parametrize(
    ("format", "revision", "sigma", "rel_l2"),
    [
        ("nvfp4_ds_mla", "rn", 1.0, 0.0951),
        ("nvfp4_ds_mla", "up", 1.0, 0.0999),
        ("fp8_ds_mla", "pow2", 1.0, 0.0267),
        ("fp8_ds_mla", "amax448", 1.0, 0.0257),
        ("fp8", "per_tensor", 1.0, 0.0267),
        ("nvfp4_ds_mla", "rn", 0.001, 0.282),
        ("fp8", "per_tensor", 0.001, 0.562),
        ("bf16", "raw", 0.001, 0.0),
    ],
)
def test_known_errors_of_standard_normal_latents(known, format, revision, sigma, rel_l2):
    row = only(known.table("errors"), format=format, revision=revision, sigma=sigma, part="NoPE")
    assert row["rel_l2"] == pytest.approx(rel_l2, abs=0.0005)
    assert row["values"] == 4096 * 512


def test_both_parts_together_are_the_sum_of_both(known):
    errors = known.table("errors")
    for _, rows in errors.groupby("variant"):
        parts = rows.set_index("part")
        for name in ("values", "clipped", "flushed", "non_finite_in"):
            assert parts[name]["both"] == parts[name]["NoPE"] + parts[name]["RoPE"]
    nope = only(errors, format="fp8_ds_mla", revision="pow2", sigma=1.0, part="NoPE")
    both = only(errors, format="fp8_ds_mla", revision="pow2", sigma=1.0, part="both")
    assert both["rel_l2"] < nope["rel_l2"]  # RoPE is bf16


def test_only_rounding_the_scale_up_keeps_nvfp4_from_clipping(known):
    errors = known.table("errors")
    clipped = [only(errors, revision=name, sigma=1.0, part="NoPE")["clipped"] for name in ("rn", "up", "pow2")]
    assert clipped[0] > 0
    assert clipped[1:] == [0, 0]


def test_tiles_and_buckets_account_for_every_value(known):
    errors, buckets, tiles = known.table("errors"), known.table("buckets"), known.table("tiles")
    for _, row in errors.iterrows():
        of_row = [frame[(frame.variant == row.variant) & (frame.part == row.part)] for frame in (buckets, tiles)]
        assert of_row[0]["values"].sum() == row["values"]
        if row.part != "both":
            assert of_row[1]["tiles"].sum() + row.undefined_tiles == row["values"] // 16
            assert row.tile_p50 <= row.tile_p90 <= row.tile_p99 <= row.tile_max
    worst = known.table("worst_tiles")
    first = worst[(worst["rank"] == 1) & (worst["error"] > 0)].iloc[0]
    x, y = (np.array(json.loads(first[name])) for name in ("inputs", "outputs"))
    assert math.sqrt(((y - x) ** 2).sum() / (x**2).sum()) == pytest.approx(first["error"])


# Providers, probes and scales


def test_kernels_and_reference_give_the_same_values(device):
    triton = load_providers({})["triton"]
    for fmt in all_formats():
        geometry, scale = fmt.geometry or Geometry(), 0.3 if fmt.external_scale else None
        values = Synthetic("normal", 1.0, 5, geometry=geometry).block(0).to(torch.bfloat16).to(device)
        expected, _ = Codec(fmt, geometry, device, None, scale)(values)
        found, _ = Codec(fmt, geometry, device, triton, scale)(values)
        assert torch.equal(found, expected), fmt.key


def test_a_provider_without_its_device_says_so(tmp_path):
    run = run_of(tmp_path, providers=("reference", "triton"), formats=("bf16",))
    rows = run.table("errors")
    assert set(rows[rows["provider"] == "triton"]["status"]) == {"skipped"}
    assert rows[rows["provider"] == "triton"]["rel_l2"].isna().all()
    assert "skipped: triton bf16:raw on normal sigma=1: triton's kernels need a CUDA device" in to_text(tables_of(run))
    assert why_not(get_format("bf16"), "reference", load_providers({})["reference"], CPU) is None


def test_uncalibrated_per_tensor_scale():
    values = torch.tensor([[600.0, 450.0, 100.0, 1.0, 0.01]]).to(torch.bfloat16)
    fmt, geometry = get_format("fp8"), Geometry(5, 0)
    assert fmt.quantize(values, values[:, :0], torch.tensor([1.0])).tolist() == [[0x7E, 0x7E, 0x6C, 0x38, 0x05]]
    read, clipped = Codec(fmt, geometry, CPU, None, calibrate("default", values))(values)
    assert read.tolist() == [[448, 448, 96, 1, 0.009765625]]
    assert clipped.tolist() == [[True, True, False, False, False]]
    scale = calibrate("amax", values)
    assert scale == float(torch.tensor(600.0) / 448)
    assert fmt.quantize(values, values[:, :0], torch.tensor([scale])).tolist() == [[0x7E, 0x7A, 0x69, 0x34, 0x04]]
    read, clipped = Codec(fmt, geometry, CPU, None, scale)(values)
    assert read.tolist()[0] == pytest.approx([600, 428.571, 96.429, 1.00446, 0.010463], rel=2**-8)
    assert not clipped.any()


def test_the_share_that_a_scale_saturates_and_its_origin_are_in_the_row(tmp_path):
    rows = run_of(tmp_path, formats=("fp8",), sigmas=(300.0,), scales=("default", "amax", "percentile")).table("errors")
    by = rows[rows["part"] == "both"].set_index("scale_origin")
    assert by["scale"]["default"] == 1.0
    assert by["clipped"]["amax"] == 0
    share = by["clipped"] / by["values"]
    assert share["default"] == pytest.approx(0.135, abs=0.01)  # beyond 448 / 300 standard deviations
    assert share["percentile"] == pytest.approx(0.001, abs=0.0005)


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan], []])
def test_a_scale_from_nothing_is_one(values):
    assert calibrate("amax", torch.tensor(values)) == 1.0
    assert calibrate("percentile", torch.tensor(values)) == 1.0


def test_a_layer_scale_changes_no_byte_of_formats_without_one():
    values = Synthetic("normal", 1.0, 64).block(0).to(torch.bfloat16)
    for fmt in all_formats():
        if fmt.geometry == Geometry() and not fmt.external_scale:
            rows = [fmt.quantize(values[:, :512], values[:, 512:], torch.tensor([s])) for s in (1.0, 0.37)]
            assert torch.equal(*rows), fmt.key


def test_a_latent_scale_saves_small_latents_in_nvfp4_and_nothing_in_fp8_ds_mla(tmp_path):
    rows = run_of(tmp_path, sigmas=(0.001,), latent_scales=(1.0, 1024.0), tokens=1024).table("errors")
    nope = rows[rows["part"] == "NoPE"]
    by = {name: only(nope, revision="rn", latent_scale=name)["rel_l2"] for name in (1.0, 1024.0)}
    assert by[1.0] == pytest.approx(0.28, abs=0.01)
    assert by[1024.0] == pytest.approx(0.095, abs=0.001)
    fp8 = [only(nope, revision="pow2", latent_scale=name)["rel_l2"] for name in (1.0, 1024.0)]
    assert fp8[0] == pytest.approx(fp8[1], abs=1e-3)
    assert only(nope, format="bf16", latent_scale=1024.0)["rel_l2"] == 0


def test_one_part_alone_leaves_the_other_as_it_was(tmp_path):
    for part, other in (("nope", "RoPE"), ("rope", "NoPE")):
        rows = run_of(tmp_path, formats=("nvfp4_ds_mla",), only=part).table("errors")
        assert only(rows, part=other)["rel_l2"] == 0
        assert only(rows, part={"nope": "NoPE", "rope": "RoPE"}[part])["rel_l2"] > 0.02
        assert set(rows["only"]) == {part}


# Readers


def test_all_readers_agree_on_powers_of_two_and_differ_on_other_scales(known):
    readers = known.table("readers")
    pow2 = readers[readers["revision"] == "pow2"]
    assert (pow2["differing"] == 0).all()
    assert (pow2["least_factor"] == 1).all()
    amax448 = readers[(readers["revision"] == "amax448") & (readers["data"] == "normal sigma=1")].set_index("reader")
    assert amax448["differing"]["fp32"] == 0
    assert 0 < amax448["differing"]["bf16"] < amax448["values"]["bf16"] / 2
    assert 0.5 <= amax448["least_factor"]["ue8m0"] < 0.51
    assert amax448["rel_l2"]["ue8m0"] > 10 * amax448["rel_l2"]["fp32"]


def test_a_tile_of_336_is_read_as_two_thirds_when_its_scale_is_truncated():
    values = torch.zeros(1, 576, dtype=torch.bfloat16)
    values[0, 0] = 336.0  # scale 0.75, truncated to 0.5
    errors = ReaderErrors(get_format("fp8_ds_mla:amax448"), Geometry())
    errors.add(values)
    rows = {row.reader: row for row in errors.rows()}
    assert rows["fp32"].rel_l2 == 0
    assert rows["ue8m0"].gain == pytest.approx(2 / 3)


# Attention


def test_attention_sees_more_error_where_there_is_more_and_entropy_is_as_asked(attended):
    rows = attended.table("attention")
    at_one = rows[(rows["sigma"] == 1.0) & (rows["against"] == "bf16")].set_index("revision")
    assert at_one["entropy"].map(math.exp).to_list() == pytest.approx([64.0] * 6, rel=0.01)
    assert (at_one.loc["raw", ["kl_mean", "logit_max", "output_rel_l2"]] == 0).all()
    for name in ("kl_mean", "logit_rms", "output_rel_l2"):
        assert at_one[name]["pow2"] < at_one[name]["rn"] / 3
    against_fp32 = rows[(rows["sigma"] == 1.0) & (rows["against"] == "fp32")].set_index("revision")
    assert 0 < against_fp32["kl_mean"]["raw"] < against_fp32["kl_mean"]["pow2"] / 50


def test_attention_over_few_tokens_and_over_none():
    latents = Synthetic("normal", 1.0, 3).block(0)
    probe = attention.draw_queries(latents, Geometry(), seed=0)
    found = attention.compare(probe.attend(latents), probe.attend(latents))
    assert (found.kl_max, found.output_worst, found.logit_max) == (0, 0, 0)
    for bad in (latents[:0], latents * math.nan):
        with pytest.raises(ValueError, match="finite"):
            attention.draw_queries(bad, Geometry(), seed=0)


def test_attention_over_a_cache_that_is_not_finite_has_no_figures():
    latents = Synthetic("normal", 1.0, 64).block(0)
    probe = attention.draw_queries(latents, Geometry(), seed=0)
    found = attention.compare(probe.attend(latents * math.inf), probe.attend(latents))
    assert set(vars(found).values()) == {None}


# The run


def test_a_run_is_the_same_for_a_seed_and_whatever_the_chunk(tmp_path, monkeypatch):
    plan = {"tokens": 4500, "formats": ("nvfp4_ds_mla",), "data": ("student_t",)}
    first = run_of(tmp_path, **plan)
    monkeypatch.setitem(sys.modules["dsmla_bench.evals.error"].CHUNK_TOKENS, "cpu", 12288)
    second = run_of(tmp_path, **plan)
    for name in ("errors", "buckets", "tiles", "worst_tiles"):
        frames = [run.table(name).drop(columns="seconds", errors="ignore") for run in (first, second)]
        pd.testing.assert_frame_equal(*frames, check_exact=True)
    assert not run_of(tmp_path, **plan, seed=1).table("buckets").equals(first.table("buckets"))


def test_formats_of_other_widths_get_tokens_of_their_own_and_no_file_of_others(tmp_path, monkeypatch):
    narrow = dataclasses.replace(get_format("bf16"), name="narrow", geometry=Geometry(448, 64))
    monkeypatch.setattr(
        "dsmla_bench.evals.error_plan.get_format", lambda name: narrow if name == "narrow" else get_format(name)
    )
    np.save(tmp_path / "wide.npy", np.ones((3, 576), np.float32))
    data = ("normal", str(tmp_path / "wide.npy"))
    rows = run_of(tmp_path, formats=("bf16", "narrow"), data=data, tokens=8).table("errors")
    nope = rows[(rows["part"] == "NoPE") & (rows["kind"] == "normal")].set_index("format")
    assert (nope["values"]["bf16"], nope["values"]["narrow"]) == (8 * 512, 8 * 448)
    skipped = rows[rows["status"] == "skipped"]
    assert set(skipped["format"]) == {"narrow"}
    assert "must be [T, 512] for 448+64, found [3, 576]" in skipped["reason"].iloc[0]


@pytest.mark.gpu
def test_a_gpu_gives_the_figures_of_a_cpu_to_the_bit(tmp_path):
    plan = {"tokens": 9000, "data": ("student_t", "token_scales"), "attention": True, "readers": True}
    plan |= {"scales": ("default", "amax")}
    runs = [run_of(tmp_path, **plan, device=device) for device in ("cpu", "cuda")]
    for name in ("errors", "buckets", "tiles", "worst_tiles", "attention", "readers"):
        frames = [run.table(name).drop(columns="seconds", errors="ignore") for run in runs]
        pd.testing.assert_frame_equal(*frames, check_exact=True)


@pytest.mark.gpu
def test_kernels_on_a_gpu_have_the_figures_of_the_reference(tmp_path):
    rows = run_of(tmp_path, device="cuda", providers=("reference", "triton"), tokens=5000).table("errors")
    frames = [rows[rows["provider"] == name].reset_index(drop=True) for name in ("reference", "triton")]
    differing = ["variant", "provider", "seconds"]
    pd.testing.assert_frame_equal(*(frame.drop(columns=differing) for frame in frames), check_exact=True)


def test_an_error_run_is_a_run_with_a_kind_and_tables_of_its_own(known):
    assert known.manifest["kind"] == "error"
    assert known.manifest["config"]["tokens"] == 4096
    assert known.rows().empty
    with pytest.raises(RunError, match=r"has no absent\.parquet; it holds .*errors\.parquet"):
        known.table("absent")
    (known.path / "broken.parquet").write_bytes(b"no table")
    with pytest.raises(RunError, match="cannot be read as a table"):
        known.table("broken")


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"latent_scales": (3.0,)}, "a latent scale must be a power of two, found 3"),
        ({"latent_scales": (0.0,)}, "a latent scale must be a power of two, found 0"),
        ({"scales": ("minimum",)}, "no scale origin 'minimum'; available: default, amax, percentile"),
        ({"sigmas": (-1.0,)}, "sigma must be positive and finite, found -1"),
        ({"only": "values"}, "only nope or rope can be quantized alone, found 'values'"),
        ({"data": ("gaussian",)}, "no data 'gaussian'; available: normal, student_t"),
        ({"formats": ("fp4",)}, "no format 'fp4'; available: "),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(plan, sentence):
    with pytest.raises(ValueError, match=r".") as refused:
        ErrorPlan(**{"formats": OURS, **plan})
    assert str(refused.value).startswith(sentence)


# The report


def test_the_report_has_tables_pictures_and_numbers(known, attended, tmp_path):
    assert "against fp32" in write_report(attended)[1].read_text(encoding="utf-8")
    written = write_report(known, tmp_path / "report")
    assert [path.name for path in written[:5]] == [
        "index.html",
        "report.md",
        "errors.csv",
        "readers.csv",
        "worst_tiles.csv",
    ]
    pictures = [path for path in written if path.suffix == ".png"]
    assert [path.name for path in pictures] == ["magnitude.png", "sigma.png", "bytes.png", "tiles.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    text = written[1].read_text(encoding="utf-8")
    assert "![Error against bytes per token: rel-L2 against bytes per token. " in text
    assert "### the same bytes by other readers, normal sigma=1" in text
    pd.testing.assert_frame_equal(
        pd.read_csv(written[2])[["rel_l2"]], known.table("errors")[["rel_l2"]].astype(float), check_dtype=False
    )


def test_a_run_without_errors_to_draw_says_what_is_left_out(tmp_path):
    run = run_of(tmp_path, formats=("bf16",), tokens=16)
    text = write_report(run)[1].read_text(encoding="utf-8")
    assert "sigma is left out: no kind of data was measured at several sigmas." in text


def test_reading_an_error_run_needs_no_torch(known):
    script = f"""
import sys
from pathlib import Path
from dsmla_bench.reports.error_report import is_error_run, tables_of
from dsmla_bench.reports.report import write_report
from dsmla_bench.results import Run
run = Run.load(Path({str(known.path)!r}))
assert is_error_run(run) and tables_of(run).tables
print(len(write_report(run)))
assert not {{"torch", "triton"}} & set(sys.modules)
"""
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "13"
