"""The report of several runs: what its summary says, and its page in a real browser without a network."""

import itertools
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from browsing import browser, visit
from builders import MANIFEST, REVISIONS, ROW_BYTES, case, compiled_sweep, h200_sweep, refused, run_of, timed
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.reports.measures import Measure
from dsmla_bench.reports.page.layout import layouts
from dsmla_bench.reports.pareto_plot import pareto_figure
from dsmla_bench.reports.report import document_of, write_report
from dsmla_bench.reports.tables import Column, Table
from dsmla_bench.results import Run, RunError

HOSTILE = "</p><script>alert(1)</script><img src=x onerror=alert(2)> {{7*7}} & \"quoted\" 'too'"
TILES = ("tile_p50", "tile_p90", "tile_p99", "tile_max")
REL_L2 = {"bf16": 0.0, "fp8": 0.0267, "fp8_ds_mla": 0.0252, "nvfp4_ds_mla": 0.0902}


def error_run(folder):
    """An error run's tables, made by hand: every format on data of two sigmas."""
    run = Run.create(folder, {"kind": "error", "default_revisions": REVISIONS})
    variants = [
        {"variant": number, "format": fmt, "revision": REVISIONS[fmt], "bytes_per_token": ROW_BYTES[fmt]}
        | {"data": f"normal sigma={sigma}", "kind": "normal", "sigma": sigma, "tokens": 64, "provider": "reference"}
        for number, (fmt, sigma) in enumerate(itertools.product(REL_L2, (0.01, 1.0)))
    ]
    counts = ("clipped", "flushed", "non_finite_in", "non_finite_lost", "non_finite_made", "undefined_tiles")
    same = {"status": "ok", "latent_scale": 1.0, "cosine": 0.999, "values": 64, **dict.fromkeys(counts, 0)}
    about = ("scale_origin", "scale", "only", "reason", "seconds")
    absent = dict.fromkeys((*about, "snr_db", "max_abs", "max_rel", "gain", "mean_bias", *TILES))
    rows = [
        {**row, "part": part, "rel_l2": REL_L2[row["format"]], **same, **absent}
        for row in variants
        for part in ("NoPE", "RoPE", "both")
    ]
    run.write_table("errors", pd.DataFrame(rows).convert_dtypes())
    parts = [{"variant": row["variant"], "part": part} for row in variants for part in ("NoPE", "RoPE")]
    binades = [{**part, "magnitude": 2.0**power, "values": 99, "rel_l2": 0.02} for part in parts for power in range(4)]
    run.write_table("buckets", pd.DataFrame(binades))
    run.write_table("tiles", pd.DataFrame(parts).assign(error_from=0.01, error_to=0.02, tiles=4))
    run.finish()
    return Run.load(run.path)


def accuracy_run(folder):
    """An accuracy run's tables, made by hand: one format is worse on one task."""
    config = {"model": "embedded", "backend": "sim"}
    run = Run.create(folder, {"kind": "accuracy", "config": config, "default_revisions": REVISIONS})
    names, sizes = ["bf16", "bf16 (A/A)", "fp8_ds_mla", "nvfp4_ds_mla"], [1152, 1152, 656, 352]
    variants = pd.DataFrame({"format": names, "bytes_per_token": sizes, "status": "ok", "reason": None})
    own = {"is_baseline": [True, False, False, False], "is_probe": [False, True, False, False]}
    run.write_table("variants", variants.assign(**own))
    found = (
        ("fp8_ds_mla", "recall", "equivalent", 0.0),
        ("fp8_ds_mla", "copy", "equivalent", 0.005),
        ("nvfp4_ds_mla", "recall", "worse", -0.055),
        ("nvfp4_ds_mla", "copy", "equivalent", -0.005),
    )
    rows = pd.DataFrame(found, columns=["format", "task", "verdict", "delta"])
    score = {"filter": "none", "metric": "acc", "higher_is_better": True, "bounded": True, "score": 0.8 + rows["delta"]}
    rows = rows.assign(baseline="bf16", paired=True, aggregation="mean", documents=200, baseline_score=0.8, **score)
    run.write_table("scores", rows[["format", "task", *score]])
    rows = rows.assign(delta_lo=rows["delta"] - 0.02, delta_hi=rows["delta"] + 0.02, method="tango", margin=0.01)
    absent = dict.fromkeys(("clusters", "needed", "lost", "gained", "answers_changed"))
    notes = [[] for _ in found]
    run.write_table("judged", rows.assign(p=0.01, p_holm=0.02, resolution=0.03, notes=notes, **absent))
    fidelity = pd.DataFrame({"format": names[1:], "bytes_per_token": sizes[1:], "kl_mean": [1e-6, 0.0037, 0.082]})
    run.write_table("fidelity", fidelity.assign(bucket="all", is_floor=[True, False, False], top1_agreement=0.99))
    run.finish()
    return Run.load(run.path)


def paired_runs(folder):
    """Base and head of one ``ab``: one of two rows is 4 % slower."""

    def side(name, slower):
        rows = [
            timed(case("write", "fp8", tokens=tokens), (5 + 0.01 * number) * factor, number)
            for tokens, factor in ((128, slower), (8192, 1.0))
            for number in range(12)
        ]
        return run_of(folder / name, rows, paired="ab-1")

    return side("base", 1.0), side("head", 1.04)


def kernel_run(folder):
    """The usual sweep with decode at three numbers of heads beside it."""
    decode = [
        timed(
            case("decode", fmt, provider, tokens, heads=heads, topk=2048, queries=1),
            us + 0.01 * tokens * heads * row_bytes / 352,
        )
        for fmt, row_bytes in ROW_BYTES.items()
        for provider, us in (("triton", 9.0), ("flash_mla", 12.0), ("reference", 400.0))
        for heads in (16, 128)
        for tokens in (1, 128)
    ]
    return run_of(folder, [*h200_sweep(), *decode], argv=["dsmla-bench", "kernels"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run of every kind."""
    folder = tmp_path_factory.mktemp("runs")
    return kernel_run(folder / "kernels"), error_run(folder / "errors"), accuracy_run(folder / "accuracy")


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """The report folder of all of them."""
    folder = tmp_path_factory.mktemp("report")
    write_report(runs, folder)
    return folder


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


def lines_of(table):
    """Group and label → the cells by format."""
    names = [column.name for column in table.columns[1:]]
    lines, group = {}, ""
    for label, *cells in zip(*(column.cells for column in table.columns), strict=True):
        if any(cells):
            lines[group, label] = dict(zip(names, cells, strict=True))
        else:
            group = label
    return lines


# What it says


def test_the_summary_says_of_every_format_bytes_speed_error_and_accuracy(runs):
    table = document_of(runs).summary
    assert [column.name for column in table.columns] == ["", "bf16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"]
    found = {key: list(cells.values()) for key, cells in lines_of(table).items()}
    assert found["memory", "bytes per token"] == ["1152", "656", "576", "352"]
    assert found["memory", "tokens that fit"] == ["1×", "1.76×", "2×", "3.27×"]
    assert found["write, 65536 tokens", "triton µs"] == ["43.0", "32.0", "29.6", "34.2†"]
    assert found["write, 65536 tokens", "vllm µs"] == ["210", "54.7", "212", "skipped"]
    assert found["write, 65536 tokens", "triton floor %"] == ["82.7", "87.2", "90.1", "67.9"]
    assert found["write, 65536 tokens", "speed-up over vllm"] == ["4.88×", "1.71×", "7.17×", "–"]
    decode = "decode, 128 requests, heads 128, topk 2048, queries 1"
    assert found[decode, "flash_mla µs"] == ["548", "317", "280", "176"]
    assert (decode, "speed-up over reference") not in found
    assert found["error, normal sigma=1.0", "NoPE rel-L2"] == ["0", "0.0252", "0.0267", "0.0902"]
    assert found["accuracy", "task scores"] == ["baseline", "2 equivalent", "–", "1 worse, 1 equivalent"]
    assert found["accuracy", "largest loss, points"] == ["–", "–", "–", "-5.50 (recall)"]
    assert found["accuracy", "KL to the baseline, nats"] == ["–", "0.0037", "–", "0.082"]


def test_two_runs_of_one_ab_are_compared_and_told_apart(tmp_path):
    base, head = paired_runs(tmp_path)
    document = document_of([base, head])
    assert document.outcomes[0] == ("Comparison", "Worse: 1 slow, 1 same.")
    assert [section.title for section in document.sections[1:]] == [
        f"Kernels on NVIDIA H200 ({run.run_id})" for run in (base, head)
    ]
    assert lines_of(document.summary)["comparison", "verdicts against the base"] == {"fp8": "1 slow, 1 same"}
    names = {path.name for path in write_report([base, head], tmp_path / "report")}
    assert {"comparison.csv", "rows.csv", "rows-2.csv", "us.svg", "us-2.svg"} <= names


@pytest.mark.parametrize(("number", "picture"), [(1, "magnitude.png"), (2, "forest.svg")], ids=["errors", "accuracy"])
def test_every_kind_of_run_alone_makes_a_report(runs, tmp_path, number, picture):
    names = {path.name for path in write_report(runs[number], tmp_path)}
    assert {"index.html", "report.md", picture} <= names
    assert "pareto.svg" not in names


def test_a_run_that_was_only_compiled_shows_predicted_floors(tmp_path):
    document = document_of([run_of(tmp_path, compiled_sweep(), not_timed="this machine has no sm90 device")])
    assert lines_of(document.summary)["write on sm90, 65536 tokens", "predicted floor µs"] == {
        "bf16": "31.5", "fp8_ds_mla": "24.7", "fp8": "23.6", "nvfp4_ds_mla": "20.5",
    }  # fmt: skip
    assert document.outcomes == [("Kernels", "Nothing was timed: this machine has no sm90 device")]


def test_a_run_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(RunError, match="no report of a run of kind 'tea'; of kernels, error, accuracy there is"):
        write_report(run_of(tmp_path, [], kind="tea"))


def test_the_command_takes_several_runs_and_says_what_it_wrote(runs, tmp_path):
    small = run_of(tmp_path, [timed(case(), 2.0)])
    paths = [str(run.path) for run in (small, *runs[1:])]
    done = CliRunner().invoke(app, ["report", *paths, "--out", str(tmp_path / "report")])
    assert (done.exit_code, done.exception) == (0, None)
    assert f"wrote {tmp_path / 'report' / 'index.html'}\n" in done.output
    for table in ("write · fp8_ds_mla", "NoPE rel-L2 on all data", "nvfp4_ds_mla against bf16"):
        assert table in done.output
    several = CliRunner().invoke(app, ["report", *paths, "--json"])
    assert str(several.exception) == "--json prints one run, found 3; name one"


def test_reports_of_equal_runs_are_equal_to_the_byte(runs, tmp_path):
    once, again = (write_report(runs[1:], tmp_path / name) for name in ("once", "again"))
    assert [path.name for path, other in zip(once, again, strict=True) if path.read_bytes() != other.read_bytes()] == []


# The picture of what formats trade


def test_a_format_that_another_beats_in_all_three_is_hollow():
    costs = {"a": (1152, 40.0, 0.0), "b": (656, 30.0, 0.02), "c": (352, 20.0, 0.09), "beaten": (700, 31.0, 0.03)}
    measures = [
        Measure(group, label, {}, {name: cost[number] for name, cost in costs.items()}, subject)
        for number, (group, label, subject) in enumerate((
            ("memory", "bytes per token", "bytes"), ("gather, 8 tokens", "triton µs", "time"),
            ("error, normal", "rel-L2", "error"),
        ))
    ]  # fmt: skip
    figure = pareto_figure(
        [measures[0], Measure("write, 8 tokens", "triton µs", {}, {"a": 1.0}, "time"), *measures[1:]]
    )
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes] == [
        ("bytes per token", "rel-L2"), ("bytes per token", "time (µs)"), ("rel-L2", "time (µs)"),
    ]  # fmt: skip
    front, *points = figure.axes[0].lines
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, False, False]
    assert front.get_xdata().tolist() == [352, 656, 1152]
    assert "triton µs of gather, 8 tokens; rel-L2 of normal." in figure.get_label()
    with pytest.raises(ValueError, match="the runs hold no error of formats"):
        pareto_figure(measures[:2])


# How a table fits a page


def test_a_table_is_cut_between_providers_and_every_piece_names_its_lines():
    names = ("µs", "GB/s", "floor %")
    providers = [Column(f"provider {number}", name, ("1000",)) for number in range(9) for name in names]
    table = Table("wide", (Column("", "tokens", ("1000",), key=True), *providers))
    (_, wide), (_, narrow) = layouts(table)
    assert 1 < len(wide) < len(narrow)
    for made in (wide, narrow):
        assert [name for piece in made for name in piece.columns[1:]] == providers
        assert all(piece.columns[0].name == "tokens" for piece in made)
        assert all((len(piece.columns) - 1) % 3 == 0 for piece in made)
    small = Table("small", table.columns[:4])
    assert layouts(small) == [("", [small])]


# The page


class Page(HTMLParser):
    """The tags of a page with their attributes, and which of them are closed in order."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_without_a_script_and_names_no_other_host(report):
    text = (report / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|@import|url\(", text)
    links = [attributes.get("src") or attributes.get("href") for _, attributes in page.tags]
    files = [link for link in links if link and not link.startswith(("#", "data:"))]
    assert {name for name in files if not (report / name).is_file()} == set()
    assert {name for name in files if name.endswith(".svg")} == {path.name for path in report.glob("*.svg")}
    assert all(len(attributes["alt"]) > 20 for tag, attributes in page.tags if tag == "img")


def test_what_a_hostile_run_says_is_shown_as_text(chromium, tmp_path):
    manifest = {"device": {**MANIFEST["device"], "name": HOSTILE}, "argv": [HOSTILE], "headline": HOSTILE}
    rows = [timed(case(), 2.0, device=HOSTILE), refused(case(provider="vllm"), "skipped", HOSTILE)]
    index, *_ = write_report(run_of(tmp_path, rows, **manifest), tmp_path / "report")
    with visit(chromium, f"file://{index}") as seen:
        seen.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        text = " ".join(seen.page.inner_text("body").split())
        assert text.count(HOSTILE) >= 4
        assert seen.page.locator("script, img[src=x]").count() == 0
        assert (seen.problems, seen.outgoing) == ([], [])


@pytest.mark.parametrize("width", [1400, 700])
def test_nothing_is_cut_off_or_missing_at_either_width(report, chromium, width):
    with visit(chromium, f"file://{report}/index.html", width) as seen:
        page = seen.page
        assert seen.overflowing() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert page.evaluate(cut) == 0
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        headings = page.locator("table").first.locator("thead th")
        assert headings.last.is_visible()
        assert (seen.problems, seen.outgoing) == ([], [])


def test_the_page_is_readable_without_javascript_and_on_paper(report, chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{report}/index.html")
    assert "nvfp4_ds_mla: 1 worse (recall acc), 1 equivalent" in page.inner_text("main")
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert not any(box.is_visible() for box in page.locator(".narrow").all())
    context.close()
