"""Cases, measurements and their summary."""

import dataclasses
import json
import math
import re

import pytest
from builders import case, refused, timed
from hypothesis import given
from hypothesis import strategies as st

from dsmla_bench.column_types import field_types
from dsmla_bench.rows import ROW_FIELDS, STATUSES, Measurement, Row
from dsmla_bench.summary import summarise, summarise_all


def test_us_is_the_median_of_process_medians_not_of_pooled_samples():
    processes = [[10.0, 10.2, 9.8], [10.4, 10.3, 10.5], [30.0] * 40]
    row = summarise([timed(case(), samples, process) for process, samples in enumerate(processes)])
    assert (row.us, row.us_lo, row.us_hi, row.us_min) == (10.4, 10.0, 30.0, 9.8)
    assert (row.samples, row.processes, row.method) == (46, 3, "graph")


def test_the_first_slow_call_does_not_move_the_median():
    row = summarise([timed(case(), [1238.7197, 0.199, 0.138, 0.127, 0.125], first_call_us=1238.7197)])
    assert row.us == 0.138
    assert row.first_call_us == 1238.7197


def test_one_process_is_spread_over_its_own_quartiles():
    row = summarise([timed(case(), [4.0, 1.0, 2.0, 3.0, 5.0])])
    assert (row.us_lo, row.us, row.us_hi) == (2.0, 3.0, 4.0)


@given(st.lists(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=6), min_size=1, max_size=5))
def test_summaries_stay_within_the_samples(processes):
    row = summarise([timed(case(), samples, number) for number, samples in enumerate(processes)])
    smallest, largest = min(map(min, processes)), max(map(max, processes))
    assert smallest == row.us_min <= row.us_lo <= row.us <= row.us_hi <= largest


def test_rates_follow_from_bytes_floor_and_copy_bandwidth():
    row = summarise([timed(case(tokens=65536), 32.0, floor_us=0.73, copy_gbps=4246.0)])
    moved = 65536 * (1152 + 656)
    assert row.gbps == moved / 32.0 / 1e3
    assert row.bound_us == moved / 4246.0 / 1e3
    assert row.bound_share == row.bound_us / 32.0
    assert row.launch_bound is False


def test_matrix_products_bound_a_time_where_they_take_longer_than_memory():
    machine = {"floor_us": 0.73, "copy_gbps": 4000.0, "matmul_tflops": 800.0}
    facts = {"bytes_read": 4_000_000, "bytes_written": 0}
    bounds = {flops: timed(case(), 50.0, **machine, **facts, flops=flops) for flops in (None, 10**9, 8 * 10**9)}
    assert {flops: summarise([m]).bound_us for flops, m in bounds.items()} == {None: 1.0, 10**9: 1.25, 8 * 10**9: 10.0}
    unknown = timed(case(), 50.0, **{**machine, "matmul_tflops": None}, **facts, flops=10**9)
    assert summarise([unknown]).bound_us is None


def test_an_axis_that_an_operation_does_not_have_leaves_its_key_alone():
    plain = case()
    assert plain.row_id == "cb21d15ead93c44b"
    assert dataclasses.replace(plain, heads=16).row_id != plain.row_id
    again = Measurement.from_json(timed(dataclasses.replace(plain, heads=16, variant="indexer"), 5.0).to_json())
    assert (again.case.heads, again.case.topk, again.case.variant) == (16, None, "indexer")
    assert str(again.case).endswith("heads 16 variant indexer")


@pytest.mark.parametrize(("us", "launch_bound", "share"), [(1.45, True, None), (1.46, False, 0.5), (0.5, True, None)])
def test_under_twice_the_floor_is_launch_bound_and_has_no_share(us, launch_bound, share):
    row = summarise([timed(case(tokens=1), us)])
    assert (row.launch_bound, row.bound_share) == (launch_bound, share)
    assert row.bound_us == 0.73


def test_what_was_not_measured_stays_undefined():
    unknown = {"floor_us": None, "copy_gbps": None, "bytes_read": None, "bytes_written": None}
    row = summarise([timed(case(), 5.0, **unknown)])
    assert row.us == 5.0
    assert row.us_check is row.gbps is row.bound_us is row.bound_share is row.launch_bound is None
    assert summarise([timed(case(), 5.0, bytes_read=None)]).bound_us is None


def test_the_second_method_gives_the_check_and_never_the_headline():
    both = Measurement(case(), 0, "ok", samples={"graph": [2.0], "profiler": [1.5, 1.7, 1.6]})
    assert (summarise([both]).us, summarise([both]).us_check) == (2.0, 1.6)
    assert (summarise([both], "profiler").us, summarise([both], "profiler").us_check) == (1.6, 2.0)


def test_rows_measured_at_a_slow_clock_are_suspect_and_cycles_are_the_clock_free_twin():
    clocks = {1: 1980.0, 2: 1975.0, 3: 1930.0, 4: 1600.0}
    rows = summarise_all([timed(case(tokens=tokens), 10.0, sm_mhz=mhz) for tokens, mhz in clocks.items()])
    assert [row.suspect for row in rows] == [False, False, False, True]
    assert rows[3].suspicion == "the clock was 1600 MHz, in the run's median row 1952"
    assert [row.kcycles for row in rows] == [19.8, 19.75, 19.3, 16.0]


def test_a_method_without_samples_is_unresolved_and_named():
    row = summarise([Measurement(case(), 0, "ok", samples={"profiler": [1.5]})], "graph")
    assert (row.status, row.us) == ("unresolved", None)
    assert row.reason == "no sample by method 'graph' (measured: profiler)"


def test_a_clock_that_shows_nothing_is_unresolved_not_zero():
    row = summarise([timed(case(), [0.0, 0.0, 0.0])])
    assert row.status == "unresolved"
    assert "resolution" in row.reason
    assert row.us is row.gbps is row.bound_share is None


def test_a_bad_status_in_any_process_is_the_rows_status():
    measurements = [
        timed(case(), 5.0, 0),
        dataclasses.replace(refused(case(), "oom", "out of memory"), process=2),
        dataclasses.replace(refused(case(), "incorrect", "3 bytes differ", bytes_differing=3), process=1),
    ]
    row = summarise(measurements)
    assert (row.status, row.reason, row.bytes_differing, row.us) == ("incorrect", "3 bytes differ", 3, None)


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "ok"])
def test_every_status_but_ok_needs_a_reason(status):
    assert summarise([refused(case(), status, "why")]).reason == "why"
    with pytest.raises(ValueError, match="needs a reason"):
        refused(case(), status, "")


def test_bad_input_is_refused_in_words():
    with pytest.raises(ValueError, match="'fine' is none of ok, skipped"):
        Measurement(case(), 0, "fine")
    with pytest.raises(ValueError, match="no measurement"):
        summarise([])
    with pytest.raises(ValueError, match="different cases"):
        summarise([timed(case(tokens=1), 1.0), timed(case(tokens=2), 1.0)])
    with pytest.raises(ValueError, match="graph is nan; a measurement holds finite numbers only"):
        timed(case(), [1.0, math.nan])
    with pytest.raises(ValueError, match="floor_us is inf"):
        timed(case(), 1.0, floor_us=math.inf)


def test_json_round_trip_keeps_every_bit_and_every_character():
    measurement = timed(case(), [0.1 + 0.2, 1e-9], device="H200 – Prüfstand 试验 µs", seed=2**63 - 1)
    assert Measurement.from_json(measurement.to_json()) == measurement
    assert "Prüfstand 试验 µs" in measurement.to_json()
    assert "\n" not in refused(case(), "runtime_error", "two\nlines").to_json()


@pytest.mark.parametrize("line", ["", "[]", "null", "{}", '{"case": {}}', '{"case": {"tokens": 1}, "status": "ok"}'])
def test_a_line_that_is_no_measurement_is_a_value_error(line):
    with pytest.raises(ValueError, match="not a measurement"):
        Measurement.from_json(line)


def test_row_id_is_the_same_on_every_machine_and_different_for_every_axis():
    first = case(tokens=128)
    assert first.row_id == "cb21d15ead93c44b"
    others = {
        "operation": "gather",
        "format": "fp8",
        "provider": "vllm",
        "tokens": 2,
        "l2_state": "hot",
        "data": "zeros",
    }
    ids = {dataclasses.replace(first, **{name: value}).row_id for name, value in others.items()}
    assert len(ids | {first.row_id}) == len(others) + 1


def test_a_case_in_words_counts_what_its_operation_does():
    assert str(case(tokens=8)) == "write fp8_ds_mla:pow2 triton 8 tokens ordered block 64"
    decode = case("decode", tokens=8, heads=16, topk=2048, queries=1)
    assert str(decode) == "decode fp8_ds_mla:pow2 triton 8 requests shuffled block 64 heads 16 topk 2048 queries 1"


def test_a_row_has_a_column_for_every_axis_of_a_case():
    assert set(dataclasses.asdict(case())) < set(ROW_FIELDS)
    assert set(field_types(Row)) == set(ROW_FIELDS)
    assert set(field_types(Row).values()) == {int, float, bool, str}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"process": "0"}, "process must be of type int, found '0'"),
        ({"reason": 5}, "reason must be of type str, found 5"),
        ({"facts": "none"}, "not a measurement"),
        ({"facts": {"status": "ok"}}, "the facts hold status"),
        ({"facts": {"tokens": 3}}, "the facts hold tokens"),
        ({"facts": {"registers": "many"}}, "registers must be of type int, found 'many'"),
        ({"facts": {"bytes_read": 10**23}}, "bytes_read must be of type int"),
        ({"samples": {"graph": "abc"}}, "the samples of graph must be numbers"),
        ({"samples": {"graph": [None]}}, "the samples of graph must be numbers"),
        ({"case": {"tokens": [1]}}, "tokens must be of type int"),
        ({"case": {"tokens": None}}, "tokens must be of type int, found None"),
        ({"case": {"tokens": 10**23}}, "tokens must be of type int"),
        ({"case": {"data": True}}, "data must be of type str, found True"),
        ({"case": "write"}, "not a measurement"),
        ({"unknown": 1}, "not a measurement"),
    ],
)
def test_a_line_of_the_wrong_types_is_no_measurement(change, message):
    """A run folder is data from anywhere: every value is checked before anything computes with it."""
    line = json.loads(timed(case(), 2.0, registers=3).to_json())
    changed_case = {**line["case"], **change["case"]} if isinstance(change.get("case"), dict) else change.get("case")
    line = {**line, **change, **({"case": changed_case} if "case" in change else {})}
    with pytest.raises(ValueError, match=re.escape(message)):
        Measurement.from_json(json.dumps(line))


def test_deeply_nested_json_is_no_measurement():
    with pytest.raises(ValueError, match="not a measurement"):
        Measurement.from_json("[" * 100_000)
