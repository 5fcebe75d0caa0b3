"""The static regression gate: which differences of compiled kernels are findings; it never compares nothing."""

import pytest
from builders import case, refused

from dsmla_bench.reports.static_changes import describe, static_changes
from dsmla_bench.results import rows_frame
from dsmla_bench.summary import summarise_all

WIDTHS = {f"global_{kind}_{bits}": 0 for kind in ("loads", "stores") for bits in (8, 16, 32, 64, 128, 256)}
FACTS = {
    **WIDTHS,
    "registers": 64,
    "spilled_bytes": 0,
    "stack_bytes": 0,
    "shared_bytes": 1024,
    "num_warps": 2,
    "occupancy": 50.0,
    "occupancy_limit": "registers",
    "instructions": 700,
    "global_loads_128": 4,
    "global_loads_64": 2,
    "global_stores_128": 2,
    "bytes_per_global_instruction": 14.0,
    "native_fp8": True,
    "native_fp4": False,
}


def rows(*measurements):
    return rows_frame(summarise_all(measurements))


def compiled(tokens=65536, format="fp8_ds_mla", arch="sm90", order="ordered", **changes):
    key = case("write", format, tokens=tokens, arch=arch, page_order=order)
    return refused(key, "compiled", "no device", **{**FACTS, **changes})


def changes_by(**changes):
    return static_changes(rows(compiled()), rows(compiled(**changes)))


def texts(found):
    return [change.text for change in found]


FINDINGS = {
    "spills registers: spilled B 0 → 8": {"spilled_bytes": 8, "stack_bytes": 8},
    "loses occupancy: occupancy % 50.0 → 43.8, limited by registers (registers 64 → 72)": {
        "registers": 72,
        "occupancy": 43.75,
    },
    "loses occupancy: occupancy % 50.0 → 25.0, limited by shared memory (shared B 1024 → 65536)": {
        "shared_bytes": 65536,
        "occupancy": 25.0,
        "occupancy_limit": "shared memory",
    },
    "narrower global loads: 4 of 128 bits, 2 of 64 bits → 3 of 128 bits, 4 of 64 bits": {
        "global_loads_128": 3,
        "global_loads_64": 4,
    },
    "narrower global stores: 2 of 128 bits → 16 of 16 bits": {"global_stores_128": 0, "global_stores_16": 16},
    "no longer uses the native e4m3 conversion": {"native_fp8": False},
}


@pytest.mark.parametrize(
    ("text", "changes"), FINDINGS.items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_regression_is_found_and_said_once(text, changes):
    assert texts(changes_by(**changes).findings) == [text]


@pytest.mark.parametrize(
    "changes",
    [
        {"registers": 60, "occupancy": 50.0},
        {"registers": 65},  # costs nothing
        {"occupancy": 40.0},  # fewer warps to a block, say: nothing grew
        {"global_loads_32": 1},  # one scalar more, the vectors as before
        {"global_loads_128": 2, "global_loads_64": 1},  # half the work, as wide as before
        {"global_loads_256": 2, "global_loads_128": 0},  # wider
        {"spilled_bytes": None, "native_fp8": True},  # what is unknown is not compared
        {"instructions": 900, "shared_bytes": 2048, "native_fp4": True},
    ],
    ids=str,
)
def test_other_differences_are_no_findings(changes):
    assert changes_by(**changes).findings == ()


def test_a_kernel_that_no_longer_compiles_is_a_finding_whatever_the_reason():
    for status in ("compile_error", "skipped", "timeout", "runtime_error"):
        now = refused(case("write", tokens=65536), status, "in words")
        found = static_changes(rows(compiled()), rows(now))
        assert texts(found.findings) == [f"no longer compiles: {status}: in words"]
        assert found.changes == ()
        better = static_changes(rows(now, compiled(tokens=1)), rows(compiled(), compiled(tokens=1)))
        assert (better.findings, texts(better.added)) == ((), ["new"])


def test_a_difference_of_several_shapes_is_one_line():
    before = rows(*(compiled(tokens) for tokens in (1, 16, 8192)))
    now = rows(*(compiled(tokens, registers=70, instructions=690) for tokens in (1, 16)), compiled(8192))
    [change] = static_changes(before, now).changes
    assert str(change) == "sm90 write fp8_ds_mla:pow2 triton (1, 16 tokens): registers 64 → 70, instructions 700 → 690"


def test_page_orders_share_a_kernel_and_rows_of_one_run_only_are_listed():
    before = rows(compiled(order="shuffled"), compiled(format="bf16"))
    found = static_changes(before, rows(compiled(), compiled(arch="sm100")))
    assert found.compared == 1
    assert [str(change) for change in found.gone] == ["sm90 write bf16:raw triton (65536 tokens): not in this run"]
    assert [str(change) for change in found.added] == ["sm100 write fp8_ds_mla:pow2 triton (65536 tokens): new"]
    assert found.findings == ()


def test_comparing_nothing_is_a_mistake_not_a_pass():
    for before in (rows(), rows(compiled(arch="sm100")), rows(refused(case(), "compile_error", "why"))):
        with pytest.raises(ValueError, match="there is nothing to compare: of "):
            static_changes(before, rows(compiled()))


def test_the_text_names_the_runs_compilers_and_counts_regressions():
    then = {"run_id": "then", "packages": {"triton": "3.6.0"}}
    now = {"run_id": "now", "packages": {"triton": "3.7.1"}}
    same = static_changes(rows(compiled()), rows(compiled()))
    assert describe(same, then, then) == ["compared with then: 1 row", "no static change"]
    worse = describe(changes_by(spilled_bytes=4), then, now)
    assert worse[1] == "note: compiled by Triton 3.7.1 now and by 3.6.0 before; its changes show too"
    assert worse[2] == "REGRESSION: sm90 write fp8_ds_mla:pow2 triton (65536 tokens): spills registers: spilled B 0 → 4"
    assert worse[-1] == "1 regression"
