"""A sweep before it starts: what axes and settings are refused, what cases there are, and what it would cost."""

import dataclasses

import fake_machine
import pytest
from builders import case, refused, timed

from dsmla_bench.bench import manifest
from dsmla_bench.bench.cases import MOST, Axes, expand, why_not
from dsmla_bench.bench.plan import MOST_SEED, START_S, SweepPlan
from dsmla_bench.bench.spread import MEASURE_S, SLOW_MEASURE_S
from dsmla_bench.bench.sweep import lacking
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.operations import all_operations
from dsmla_bench.kernels.providers.triton import TritonProvider

SM90 = Architecture.parse("sm90")
AXES = Axes(("write", "gather"), ("bf16:raw",), ("reference", "triton"), tokens=(1, 8), block_sizes=(16, 64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": (1, 0)}, rf"tokens must be from 1 to {MOST}, found \(1, 0\)"),
        ({"block_sizes": (MOST + 1,)}, "block_sizes must be from 1"),
        ({"heads": (-1,)}, "heads must be from 1"),
        ({"requests": 0}, "requests must be from 1 to .*, found 0"),
        ({"requests": MOST + 1}, "requests must be from 1"),
        ({"page_orders": ("ordered", "sorted")}, "page order 'sorted' is none of ordered, shuffled"),
    ],
)
def test_axes_that_no_kernel_can_count_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(AXES, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, f"the seed must be from 0 to {MOST_SEED}, found -1"),
        ({"seed": MOST_SEED + 1}, "the seed must be"),
        ({"case_timeout_s": 0.0}, "a case may take at most 86400 s, found 0"),
        ({"case_timeout_s": float("nan")}, "found nan"),
        ({"case_timeout_s": 86_401.0}, "found 86401"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        SweepPlan(AXES, (SM90,), **changes)


def test_every_combination_is_one_case_and_no_request_is_without_a_token():
    cases = expand(AXES, SM90)
    assert len(set(cases)) == len(cases) == 2 * 2 * 2 * 2 * 2  # operations, providers, tokens, page sizes, page orders
    assert {(one.operation, one.tokens, one.requests) for one in cases} == {
        ("write", 1, 1),
        ("write", 8, 1),
        ("gather", 1, 1),
        ("gather", 8, 8),
    }
    assert [one.provider for one in cases] == ["reference", "triton"] * 16, "those that share inputs are neighbours"


def test_variants_are_those_that_an_operation_has_of_those_that_are_asked_for():
    varied = next(operation for operation in all_operations() if len(operation.variants) > 1)
    wanted = varied.variants[-1]
    axes = dataclasses.replace(AXES, operations=("write", varied.name), tokens=(4,), variant=(wanted, "none of them"))
    found = {operation: set() for operation in axes.operations}
    for one in expand(axes, SM90):
        found[one.operation].add(one.variant)
    assert found == {"write": {None}, varied.name: {wanted}}


def test_a_geometry_that_a_format_cannot_store_is_refused_ahead_of_the_provider():
    narrow = case("write", "fp8_ds_mla", kv_lora_rank=256)
    assert why_not(TritonProvider({}), narrow).startswith("fp8_ds_mla needs 512+64, got 256+64")
    assert why_not(TritonProvider({}), case("write", "fp8_ds_mla")) is None


def test_a_plan_costs_what_its_slowest_device_takes(monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "here:sm90,sm90")
    monkeypatch.setattr(manifest, "find_devices", fake_machine.find_devices)
    plan = SweepPlan(AXES, (SM90,), processes=3)
    halves = dataclasses.replace(plan, devices="all")
    whole = 3 * (START_S + 16 * MEASURE_S + 16 * SLOW_MEASURE_S)
    assert plan.seconds() == pytest.approx(whole)
    assert halves.seconds() == pytest.approx(3 * (START_S + 8 * MEASURE_S + 8 * SLOW_MEASURE_S))
    assert plan.steps() == halves.steps() == 3 * 32
    three = dataclasses.replace(
        AXES, operations=("write",), tokens=(1, 2, 3), block_sizes=(64,), page_orders=("ordered",)
    )
    uneven = SweepPlan(three, (SM90,), processes=1, devices="all")
    assert sorted(map(len, uneven.shares().values())) == [2, 4]
    assert uneven.seconds() == pytest.approx(START_S + 2 * MEASURE_S + 2 * SLOW_MEASURE_S)
    offline = SweepPlan(AXES, (Architecture.parse("sm100"),), processes=3)
    assert (offline.steps(), offline.missing()) == (32, [Architecture.parse("sm100")]), "once each, with no device"


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": 1},
        {"seed": 1},
        {"methods": ("graph",)},
        {"architectures": (Architecture.parse("sm100"),)},
        {"axes": dataclasses.replace(AXES, tokens=(1, 9))},
        {"libraries": {"vllm": "/here/another.so"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_decides_a_runs_rows_is_in_its_configuration_and_where_a_library_lies_is_not(changes):
    """Only a sweep of the same configuration may go on with a run."""
    plan = SweepPlan(AXES, (SM90,), libraries={"vllm": "/here/vllm.so"})
    assert dataclasses.replace(plan, **changes).config != plan.config
    assert dataclasses.replace(plan, libraries={"vllm": "/there/vllm.so"}, case_timeout_s=1.0).config == plan.config


def test_a_process_measures_what_it_lacks_and_nothing_that_failed_before():
    cases = [case(tokens=tokens) for tokens in range(1, 7)]
    done, of_another, skipped, wrong, *others = cases
    held = [
        timed(done, 9.0, process=1),
        timed(of_another, 9.0, process=0),
        refused(skipped, "skipped", "it has no write"),
        refused(wrong, "incorrect", "1 byte differs"),
    ]
    assert sorted(map(str, lacking(held, cases, 1, seed=0))) == sorted(map(str, [of_another, *others]))
    order = lacking([], cases, 1, seed=0)
    assert order == lacking([], [*cases, *cases], 1, seed=0), "each once, and in the same order when a run is resumed"
    assert order != lacking([], cases, 2, seed=0)


def test_what_a_provider_refuses_costs_nothing(monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "here:sm90")
    monkeypatch.setattr(manifest, "find_devices", fake_machine.find_devices)
    narrow = dataclasses.replace(AXES, formats=("fp8_ds_mla:pow2",), kv_lora_rank=256)
    assert SweepPlan(narrow, (SM90,), processes=1).seconds() == START_S
