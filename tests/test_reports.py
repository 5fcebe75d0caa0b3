"""Reports of synthetic runs: tables to the letter, arithmetic to the bit, pictures by what they hold."""

import io
import subprocess
import sys

import pandas as pd
import pytest
from builders import REVISIONS, case, compiled_sweep, h200_sweep, refused, run_of, timed
from matplotlib.image import imread
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.reports.characters import printable
from dsmla_bench.reports.curves import curves, describe
from dsmla_bench.reports.kernel_frame import kernel_frame
from dsmla_bench.reports.kernel_plots import gbps_figure, speed_up_figure, us_figure
from dsmla_bench.reports.kernel_report import run_tables
from dsmla_bench.reports.plots import picture
from dsmla_bench.reports.renderings import to_csv, to_markdown, to_terminal, to_text
from dsmla_bench.reports.report import write_report
from dsmla_bench.reports.sheet import spread
from dsmla_bench.reports.static_plot import instructions_figure
from dsmla_bench.reports.static_table import static_tables
from dsmla_bench.reports.tables import Column, KernelTables, Table, kernel_tables, significant
from dsmla_bench.results import RunError, rows_frame
from dsmla_bench.summary import summarise

LABEL = "H200 – Prüfstand 试验 µs"


def rows_of(*measurements):
    return rows_frame([summarise([measurement]) for measurement in measurements])


def small_run():
    """Launch-bound, incorrect, skipped and emulated rows beside plain ones."""
    return rows_of(
        timed(case(provider="vllm", tokens=1), 2.26),
        timed(case(provider="triton", tokens=1), 1.31),
        timed(case(provider="vllm", tokens=8192), 9.39),
        timed(case(provider="triton", tokens=8192), 6.4),
        timed(case(provider="vllm", tokens=65536), 54.7),
        refused(case(tokens=65536), "incorrect", "bytes differ", bytes_compared=42991616, bytes_differing=17),
        timed(case(format="nvfp4_ds_mla", tokens=8192), 6.6, conversion="emulated"),
        refused(case(format="nvfp4_ds_mla", provider="vllm", tokens=8192), "skipped", "needs sm_100,\n  found sm_90"),
        refused(case(format="nvfp4_ds_mla", provider="vllm", tokens=1), "skipped", "needs sm_100,\n  found sm_90"),
    )


GOLDEN = """\
device NVIDIA H200, method graph, arch sm90, requests 1, block size 64, page order ordered, L2 cold,
  kv_lora_rank 512, rope_dim 64, data normal

write · fp8_ds_mla
        triton                     vllm                  triton speed-up
tokens          µs  GB/s  floor %    µs   GB/s  floor %        over vllm
     1       1.31*  1.38        –  2.26  0.800     32.3           1.73×*
  8192       6.40   2310     54.5  9.39   1580     37.1           1.47×
 65536  incorrect      –        –  54.7   2170     51.0               –

write · nvfp4_ds_mla
        triton
tokens     µs  GB/s  floor %
     1     –      –        –
  8192  6.60†  1870     44.0

floor %: the fastest this machine allows (an empty kernel, the bytes at a copy kernel's bandwidth,
  or a matrix product's rate) as a share of the time
* launch-bound: under twice the time of an empty kernel, so it says little about the kernel and
  nothing between formats
† conversion emulated: the target has no instruction for it; never compared with a native row

incorrect: triton fp8_ds_mla:pow2 (write; 1 row): bytes differ (worst: 17 of 42991616 bytes differ,
  at 65536 tokens)
skipped: vllm nvfp4_ds_mla:rn (write; 2 rows): needs sm_100, found sm_90
"""


def test_the_text_table_to_the_letter():
    assert to_text(kernel_tables(small_run(), default_revisions=REVISIONS), 100) == GOLDEN


def test_markdown_is_a_github_table_with_nothing_read_as_markup():
    text = to_markdown(kernel_tables(small_run(), default_revisions=REVISIONS))
    assert "| tokens | triton µs | triton GB/s | triton floor % | vllm µs |" in text
    assert "| ---: | ---: | ---: |" in text
    assert "| 1 | 1.31\\* | 1.38 | – | 2.26 | 0.800 | 32.3 | 1.73×\\* |" in text
    tricky = rows_of(refused(case(), "runtime_error", "a|b *c* <d> `e` _f_ fp8_ds_mla"))
    assert r"a\|b \*c\* \<d\> \`e\` \_f\_ fp8_ds_mla" in to_markdown(kernel_tables(tricky))


def test_csv_has_full_precision_and_empty_cells_for_undefined():
    rows = rows_of(timed(case(tokens=7), 0.1 + 0.2), refused(case(tokens=8), "oom", LABEL))
    again = pd.read_csv(io.StringIO(to_csv(rows)), dtype=rows.dtypes.to_dict())
    pd.testing.assert_frame_equal(again, rows)
    assert ",0.30000000000000004," in to_csv(kernel_frame(rows))


def test_speed_up_is_the_other_time_over_ours():
    frame = kernel_frame(small_run()).set_index(["format", "tokens"])["speedup_over_vllm"]
    assert frame["fp8_ds_mla", 8192] == 9.39 / 6.4
    assert frame["fp8_ds_mla", 1] == 2.26 / 1.31
    assert frame["fp8_ds_mla", 65536] is pd.NA
    assert frame["nvfp4_ds_mla", 8192] is pd.NA
    reverse = kernel_frame(small_run(), baseline="vllm").set_index(["format", "tokens"])
    assert reverse["speedup_over_triton"]["fp8_ds_mla", 8192] == 6.4 / 9.39


@pytest.mark.parametrize(("theirs", "defined"), [("native", False), ("emulated", True), ("none", True), (None, True)])
def test_an_emulated_row_is_never_compared_with_a_native_one(theirs, defined):
    rows = rows_of(timed(case(), 2.0, conversion="emulated"), timed(case(provider="vllm"), 4.0, conversion=theirs))
    assert kernel_frame(rows)["speedup_over_vllm"].notna().tolist() == [defined]


def test_without_the_baseline_there_is_no_speed_up_and_a_note():
    tables = kernel_tables(rows_of(timed(case(provider="vllm"), 4.0)))
    assert "no speed-up: the run has no rows of triton (it has vllm)" in tables.notes
    assert "speed-up" not in to_text(tables).split("no speed-up")[0]


def test_one_case_twice_is_refused():
    rows = rows_of(timed(case(), 2.0))
    with pytest.raises(ValueError, match="hold a case of triton twice; make a table of one run at a time"):
        kernel_frame(pd.concat([rows, rows]))


def test_hot_and_cold_rows_are_lines_of_their_own():
    (table,) = kernel_tables(rows_of(timed(case(), 2.0), timed(case(l2_state="hot"), 1.9))).tables
    assert [(column.name, column.cells) for column in table.columns[:2]] == [
        ("tokens", ("128", "128")),
        ("L2", ("cold", "hot")),
    ]


@pytest.mark.parametrize(
    ("revisions", "defaults", "shown"),
    [
        (["pow2"], REVISIONS, ["fp8_ds_mla"]),
        (["amax448"], REVISIONS, ["fp8_ds_mla:amax448"]),
        (["pow2", "amax448"], REVISIONS, ["fp8_ds_mla:amax448", "fp8_ds_mla:pow2"]),
        (["pow2"], {}, ["fp8_ds_mla:pow2"]),
    ],
)
def test_a_revision_is_named_where_the_bare_name_would_not_say_which(revisions, defaults, shown):
    rows = rows_of(*[timed(case(revision=revision), 2.0) for revision in revisions])
    assert [table.title for table in kernel_tables(rows, default_revisions=defaults).tables] == [
        f"write · {name}" for name in shown
    ]
    assert kernel_frame(rows)["revision"].tolist() == sorted(revisions)


def test_a_run_without_a_device_shows_what_the_compiler_said(tmp_path):
    run = run_of(tmp_path, compiled_sweep(), not_timed="this machine has no sm90 device")
    text = to_text(run_tables(run, run.rows()))
    assert text.startswith("Nothing was timed: this machine has no sm90 device\n")
    assert "tokens  registers  spilled B  shared B  floor µs\n" in text
    assert "    24.7\n" in text
    assert "skipped: vllm fp8_ds_mla:pow2 (write, gather; 10 rows): needs a CUDA device\n" in text
    assert "GB/s" not in text


def test_architectures_that_were_only_compiled_stand_beside_timed_ones():
    compiled = [refused(case(arch=arch), "compiled", f"no {arch} device", registers=64) for arch in ("sm100", "sm80")]
    tables = kernel_tables(rows_of(timed(case(arch="sm90"), 2.0), *compiled), default_revisions=REVISIONS)
    assert [table.title for table in tables.tables] == [
        f"write · fp8_ds_mla · {arch}" for arch in ("sm80", "sm90", "sm100")
    ]
    assert [table.columns[1].name for table in tables.tables] == ["registers", "µs", "registers"]
    assert tables.headline == ""
    assert "compiled: triton fp8_ds_mla:pow2 (write; 1 row): no sm100 device" in tables.reasons


def test_a_provider_that_serves_nothing_in_a_table_is_in_the_reasons_alone():
    """What failed keeps its column: that it is there is the finding."""
    rows = [timed(case(), 2.0), refused(case(provider="vllm"), "skipped", "needs sm_100")]
    rows.append(refused(case(provider="flash_mla"), "runtime_error", "boom"))
    tables = kernel_tables(rows_of(*rows))
    assert {column.group for column in tables.tables[0].columns} == {"", "triton", "flash_mla"}
    assert "skipped: vllm fp8_ds_mla:pow2 (write; 1 row): needs sm_100" in tables.reasons


def test_rows_that_were_all_refused_still_make_a_table():
    tables = kernel_tables(rows_of(refused(case(), "timeout", "60 s passed")))
    assert tables.headline == "Nothing was timed: no row is ok (1 timeout)."
    assert tables.tables[0].columns[1].cells == ("timeout",)


@pytest.mark.parametrize(
    ("groups", "width", "heads"),
    [
        ("AABBC", 34, ["key  a1  a2  b3  b4  c5"]),
        ("AABBC", 20, ["key  a1  a2  b3  b4", "key  c5"]),
        ("AABBC", 15, ["key  a1  a2", "key  b3  b4  c5"]),  # a group stays whole
        ("AAABC", 14, ["key  a1  a2", "key  a3  b4", "key  c5"]),  # but one that does not fit by itself
        ("AABBC", 6, []),
    ],
)
def test_a_table_is_cut_between_groups_and_every_piece_has_the_key(groups, width, heads):
    names = [f"{group.lower()}{number}" for number, group in enumerate(groups, 1)]
    columns = [Column(group, name, ("10",)) for group, name in zip(groups, names, strict=True)]
    table = Table("t", (Column("", "key", ("one",), numeric=False, key=True), *columns))
    lines = to_text(KernelTables("", "", (table,), (), ()), width).splitlines()
    assert [line for line in lines if line.startswith("key")] == heads
    if not heads:
        assert lines[1] == "one"


def test_a_piece_of_a_table_has_no_lines_of_dashes():
    cells = {"a": ("1", "–", "–"), "b": ("–", "2", "–")}
    columns = [Column("", name, column) for name, column in cells.items()]
    table = Table("t", (Column("", "key", ("one", "two", "six"), numeric=False, key=True), *columns))
    whole, cut = (to_text(KernelTables("", "", (table,), (), ()), width) for width in (11, 8))
    assert whole == "t\nkey  a  b\none  1  –\ntwo  –  2\nsix  –  –\n"
    assert cut == "t\nkey  a\none  1\n\nkey  b\ntwo  2\n"


@pytest.mark.parametrize("width", [None, 120, 60, 46, 24])
def test_no_width_cuts_a_number_short(width):
    tables = kernel_tables(rows_frame(map(summarise, zip(h200_sweep()))), default_revisions=REVISIONS)
    text = to_text(tables, width)
    shown = set(text.replace(",", " ").split())
    assert {cell for table in tables.tables for column in table.columns for cell in column.cells} - {"–"} <= shown
    assert text == "".join(f"{line.plain}\n" for line in to_terminal(tables, width))
    if width and width >= 46:
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (209.94, "210"),
        (2.0, "2.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (0.00048, "0.000480"),
        (4246.3, "4250"),
        (123456.0, "123000"),
        (0.0, "0.00"),
        (65536, "65536"),
        *[(undefined, "–") for undefined in (None, pd.NA, float("nan"), float("inf"))],
    ],
)
def test_numbers_print_with_three_significant_digits(value, text):
    assert significant(value) == text


def test_text_for_a_stream_that_lacks_a_character():
    assert printable("2.26 µs × – †", "ascii") == "2.26 us x - +"
    assert printable(LABEL, "ascii") == "H200 - Pr\\xfcfstand \\u8bd5\\u9a8c us"
    assert printable(LABEL, "utf-8") == LABEL
    assert printable("µs 试", "latin-1") == "us \\u8bd5"


def test_curves_take_ordered_pages_for_write_and_shuffled_ones_for_gather():
    rows = rows_frame(map(summarise, zip(h200_sweep())))
    drawn = curves(rows)
    assert set(drawn.loc[drawn["operation"] == "write", "page_order"]) == {"ordered"}
    assert set(drawn.loc[drawn["operation"] == "gather", "page_order"]) == {"shuffled"}
    assert not drawn.duplicated(["operation", "format", "provider", "tokens"]).any()
    assert describe(drawn) == (
        "NVIDIA H200, method graph, arch sm90, L2 cold, page order ordered (write), shuffled (gather), block size 64, "
        "requests 1 (write), 1 to 8 (gather)"
    )


def test_curves_never_mix_hot_with_cold_and_use_what_pages_there_are():
    rows = rows_of(*[timed(case(l2_state=state, page_order="shuffled"), 2.0) for state in ("hot", "cold")])
    assert curves(rows)[["l2_state", "page_order"]].values.tolist() == [["cold", "shuffled"]]


@pytest.mark.parametrize(
    "rows",
    [
        rows_frame(map(summarise, zip(h200_sweep()))),
        small_run(),
        rows_of(timed(case(), 2.0, device=f"{LABEL} $x$ $", copy_gbps=None, floor_us=None)),
        rows_of(timed(case(), 2.0), refused(case("gather", "bf16", "vllm"), "oom", "out of memory")),
    ],
    ids=["sweep", "small", "one point", "a panel without times"],
)
def test_pictures_of_all_sorts_of_runs(tmp_path, rows):
    for figure in (us_figure(rows), gbps_figure(rows)):
        height, width, _ = imread(io.BytesIO(picture(figure, "png"))).shape
        assert 400 < height < 1400
        assert 800 < width < 2200
        panels = rows[["operation", "format", "revision"]].drop_duplicates()
        assert len(figure.axes) == len(panels)


def test_a_picture_shows_the_floor_the_ceiling_and_hollow_launch_bound_points():
    rows = rows_frame(map(summarise, zip(h200_sweep())))
    lines = us_figure(rows).axes[0].lines
    assert [line.get_linestyle() for line in lines if line.get_marker() == "o"] == ["-", "None"]
    assert next(line for line in lines if line.get_markerfacecolor() == "white").get_xdata().tolist() == [1, 128]
    floor = next(line for line in lines if line.get_marker() == "None")
    bound = rows.loc[rows["tokens"] == 65536, "bound_us"].iloc[0]
    assert floor.get_ydata().min() == 0.73
    assert floor.get_ydata().max() == pytest.approx(1.15 * bound)
    assert "copy kernel: 4250 GB/s" in [text.get_text() for text in gbps_figure(rows).axes[0].texts]


def decode_rows():
    """Two operations with axes of their own beside one without."""
    decode = [
        timed(case("decode", "fp8", provider, tokens, heads=heads, topk=2048, queries=1), us * heads)
        for provider, us in (("triton", 1.0), ("flash_mla", 2.0))
        for heads in (16, 128)
        for tokens in (1, 8)
    ]
    fused = [timed(case("fused_norm_rope", "fp8", tokens=8, variant=name), 4.0) for name in ("indexer", "no-indexer")]
    return rows_of(timed(case("write", "fp8"), 2.0), *decode, *fused)


def test_axes_that_only_some_operations_have_lead_the_lines_of_their_tables():
    tables = kernel_tables(decode_rows(), default_revisions=REVISIONS)
    write, fused, decode = tables.tables
    assert [table.title.split(" (")[0] for table in tables.tables] == [
        "write · fp8",
        "fused_norm_rope · fp8",
        "decode · fp8",
    ]
    assert [(column.name, column.cells) for column in decode.columns[:2]] == [
        ("heads", ("16", "16", "128", "128")),
        ("requests", ("1", "8", "1", "8")),
    ]
    assert decode.title.endswith("(topk 2048, queries 1, page order shuffled)")
    assert (fused.columns[0].name, fused.columns[0].cells) == ("variant", ("indexer", "no-indexer"))
    assert {column.name for column in write.columns} == {"tokens", "µs", "GB/s", "floor %"}
    assert "heads" not in tables.common
    assert decode.columns[-1].cells == ("2.00×",) * 4


def test_no_panel_mixes_heads_or_variants():
    figure = us_figure(decode_rows(), ["decode"])
    assert [axes.get_title() for axes in figure.axes] == ["heads 16 · fp8:per_tensor", "heads 128 · fp8:per_tensor"]
    for axes, heads in zip(figure.axes, (16, 128), strict=True):
        ours, theirs = (line for line in axes.lines if line.get_marker() != "None" and len(line.get_xdata()))
        assert ours.get_ydata().tolist() == [heads, heads]
        assert theirs.get_ydata().tolist() == [2 * heads, 2 * heads]
    assert len(us_figure(decode_rows()).axes) == 5


def test_an_operation_with_axes_of_its_own_has_pictures_of_its_own(tmp_path):
    measured = [timed(case(), 2.0), timed(case("decode", heads=16), 9.0), timed(case("decode", heads=128), 20.0)]
    names = {path.stem for path in write_report(run_of(tmp_path, measured)) if path.suffix == ".svg"}
    assert names == {"us", "gbps", "us_decode", "gbps_decode"}


def test_compiled_kernels_of_several_heads_are_lines_of_their_own():
    facts = {"registers": 255, "instructions": 900, "predicted_us": 2.0}
    shapes = [case(), *(case("decode", heads=heads, topk=2048) for heads in (16, 128))]
    rows = rows_of(*(refused(shape, "compiled", "no device", **facts) for shape in shapes))
    (table,) = static_tables(rows, default_revisions=REVISIONS).tables
    assert [(column.name, column.cells) for column in table.columns[:5]] == [
        ("operation", ("write", "decode", "decode")),
        ("format", ("fp8_ds_mla",) * 3),
        ("heads", ("–", "16", "128")),
        ("topk", ("–", "2048", "2048")),
        ("tokens", ("128",) * 3),
    ]
    assert [axes.get_title() for axes in us_figure(rows).axes] == [
        "write, 128 tokens",
        "decode, 128 tokens, heads 128, topk 2048",
    ]


def test_every_bar_of_compiled_kernels_names_the_heads_where_there_are_several():
    mix = [f"global_{kind}_{bits}" for kind in ("loads", "stores") for bits in (8, 16, 32, 64, 128, 256)]
    mix += ["shared_instructions", "barriers", "local_loads", "local_stores", "conversions"]
    facts = dict.fromkeys([*mix, "float_instructions", "integer_instructions", "other_instructions"], 100)
    shapes = [case(), *(case("decode", heads=heads, topk=2048) for heads in (16, 128))]
    found = [
        refused(shape, "compiled", "no device", registers=64, occupancy=50.0, instructions=2000, **facts)
        for shape in shapes
    ]
    (axes,) = instructions_figure(rows_of(*found), default_revisions=REVISIONS).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["write fp8_ds_mla", "decode fp8_ds_mla heads 16", "decode fp8_ds_mla heads 128"]
    assert len([bar for bar in axes.patches if bar.get_width() == 1200]) == 3


def test_a_suspect_row_is_told_from_others_by_its_own_axes():
    rows = rows_of(timed(case("decode", heads=64, topk=2048), 9.0, peak_gbps=0.001))
    assert "128 tokens shuffled, heads 64, topk 2048, 9.00 µs" in "".join(kernel_tables(rows).reasons)


def test_speed_up_is_drawn_over_production_kernels_alone():
    rows = rows_of(
        *(timed(case(provider=name), us) for name, us in (("triton", 4.0), ("vllm", 9.0), ("reference", 90.0)))
    )
    (axes,) = speed_up_figure(rows).axes
    drawn = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    assert [line.get_ydata().tolist() for line in drawn if len(line.get_ydata())] == [[2.25]]
    emulated = rows_of(timed(case(), 4.0, conversion="emulated"), timed(case(provider="vllm"), 9.0))
    with pytest.raises(ValueError, match="no time of triton can be compared"):
        speed_up_figure(emulated)


def test_pictures_without_times(tmp_path):
    for rows in (rows_of(), rows_of(refused(case(), "oom", "out of memory"))):
        with pytest.raises(ValueError, match="there is nothing timed to plot"):
            us_figure(rows)
    compiled = rows_frame(map(summarise, zip(compiled_sweep())))
    write, _ = us_figure(compiled).axes
    assert [bar.get_width() for bar in write.patches] == pytest.approx([31.457, 23.593, 24.685, 20.535], abs=1e-3)
    with pytest.raises(ValueError, match="nothing timed to plot: the run has 40 compiled, 40 skipped"):
        gbps_figure(compiled)


def test_ticks_leave_room_for_their_labels():
    assert spread([2**exponent for exponent in range(17)]) == [65536, 8192, 1024, 128, 16, 2]
    assert spread([128]) == [128]


def test_a_report_is_written_beside_the_run_and_can_be_written_again(tmp_path):
    run = run_of(tmp_path, h200_sweep(), argv=["dsmla-bench", "kernels"], seed=1, note=LABEL)
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    paths = write_report(run)
    texts = ["index.html", "report.md", "rows.csv", "table.csv"]
    pictures = [f"{name}.{kind}" for name in ("us", "gbps", "speed_up") for kind in ("png", "svg")]
    assert [path.name for path in paths] == texts + pictures
    assert {path.parent for path in paths} == {run.path / "report"}
    first = {path: path.read_bytes() for path in paths}
    assert write_report(run, run.path / "report") == paths
    assert {path: path.read_bytes() for path in paths} == first
    assert {path: path.read_bytes() for path in before} == before
    text = paths[1].read_text(encoding="utf-8")
    for expected in (
        "## Kernels on NVIDIA H200",
        "device: NVIDIA H200, sm90, driver 580.159",
        "packages: torch 2.11.0+cu130, triton 3.6.0\n",
        "rows: 140 ok, 20 skipped",
        "empty kernel 0.730 µs, clock quantum 0.0320 µs, copy kernel 4250 GB/s",
        "command: dsmla-bench kernels",
        "![Time of one launch: time (µs) against tokens per launch. NVIDIA H200, method graph, arch sm90, ",
        "requests 1 (write), 1 to 8 (gather)](us.png)",
    ):
        assert expected in text


def test_a_report_of_a_bare_unfinished_run_says_what_it_lacks(tmp_path):
    run = run_of(tmp_path, [refused(case(), "runtime_error", "boom")])
    run.manifest = {"schema_version": 1, "device": None, "packages": None}
    _, report, *rest = write_report(run, tmp_path / "elsewhere" / "deep")
    text = report.read_text(encoding="utf-8")
    assert [path.name for path in rest] == ["rows.csv", "table.csv"]
    assert "run: did not end: these are the rows it left" in text
    assert "us is left out: there is nothing timed to plot: the run has 1 runtime_error." in text
    assert r"runtime_error: triton fp8_ds_mla:pow2 (write; 1 row): boom" in text


def test_a_report_that_cannot_be_written_says_where(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file: cannot write the report here .*; name a writable folder"):
        write_report(run_of(tmp_path, [timed(case(), 2.0)]), tmp_path / "file")


def test_a_run_without_rows_has_nothing_to_report(tmp_path):
    run = run_of(tmp_path, [])
    with pytest.raises(RunError, match="holds no row to report; measure some with"):
        write_report(run)
    assert not (run.path / "report").exists()
    for options in ([], ["--json"]):
        error = CliRunner().invoke(app, ["report", str(run.path), *options]).exception
        assert "holds no row to report" in str(error)


def test_reports_are_utf8_whatever_the_locale(tmp_path):
    run = run_of(tmp_path, [timed(case(), 2.0, device=LABEL), refused(case(provider="vllm"), "skipped", LABEL)])
    script = (
        "import sys; from dsmla_bench.results import Run; from dsmla_bench.reports import characters, "
        "kernel_report, renderings, report; run = Run.load(sys.argv[1]); report.write_report(run); "
        "text = renderings.to_text(kernel_report.run_tables(run, run.rows())); "
        "print(characters.printable(text, sys.stdout.encoding))"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, run.path], env=environment, capture_output=True, check=True)
    assert done.stderr == b""
    assert b"Pr\\xfcfstand \\u8bd5\\u9a8c us" in done.stdout
    assert b"?s" not in done.stdout
    for name in ("report.md", "index.html"):
        assert LABEL in (run.path / "report" / name).read_text(encoding="utf-8")
    rows = pd.read_csv(run.path / "report" / "rows.csv", encoding="utf-8")
    assert rows["device"].iloc[0] == rows["reason"].iloc[1] == LABEL
    assert imread(run.path / "report" / "us.png").ndim == 3
