"""The dashboard: what its files hold, and the pages in a real browser without a network."""

import json
import re
import uuid

import numpy as np
import pytest
from browsing import browser, visit
from builders import MANIFEST, case
from histories import generated_run, noisy_figures, step, timed_rows, write_store
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.history import History
from dsmla_bench.history_rows import HistoryError
from dsmla_bench.reports.dashboard.figures import six_digits
from dsmla_bench.reports.dashboard.site import write_dashboard

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;b&gt;{{7*7}}"
NIGHTS, ROWS = 40, 24
STEP_NIGHT = 33


def write_stepped_store(url):
    """40 nights of 24 rows; write fp8 by triton is 10 % slower from night 33 on, write fp8 by vllm ends incorrect."""
    rng = np.random.default_rng(0)
    cases = [
        case(operation, fmt, provider, tokens)
        for operation in ("write", "gather")
        for fmt in ("bf16", "fp8", "fp8_ds_mla")
        for provider in ("triton", "vllm")
        for tokens in (128, 8192)
    ]
    slower = [0.10 * ((key.operation, key.format, key.provider) == ("write", "fp8", "triton")) for key in cases]
    figures = np.stack([noisy_figures(rng, step(NIGHTS, STEP_NIGHT, size, us=8.0)) for size in slower])
    for night in range(NIGHTS):
        rows = timed_rows(cases, figures[:, night], device="NVIDIA H200", binary_sha256="ab" * 32)
        if night == NIGHTS - 1:
            broken = (rows["operation"] == "write") & (rows["format"] == "fp8") & (rows["provider"] == "vllm")
            rows.loc[broken, ["status", "reason", "us"]] = ["incorrect", "17 bytes differ", None]
        driver = "580.159" if night < 20 else "585.20"
        History(url).add(generated_run(night, rows, device={**MANIFEST["device"], "driver": driver}))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The dashboard of such a store."""
    folder = tmp_path_factory.mktemp("dashboard")
    write_stepped_store(str(folder / "store"))
    done = CliRunner().invoke(app, ["dashboard", "--store", str(folder / "store"), "--out", str(folder / "site")])
    assert (done.exit_code, done.output) == (0, f"wrote {folder / 'site' / 'index.html'}\n")
    return folder / "site"


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


def data_of(site, name):
    """The content of one data file, read as strict JSON."""
    text = (site / "dashboard-data" / f"{name}.js").read_text(encoding="ascii")
    found = re.fullmatch(r'dashboard\.receive\("([\w-]+)",(.*)\);\n', text, re.DOTALL)
    assert found[1] == name
    return json.loads(found[2], parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


# What the files hold


def test_the_catalogue_has_every_row_with_its_latest_figure_and_change(site):
    catalogue = data_of(site, "catalogue")
    assert catalogue["summary"] == f"{NIGHTS} runs on NVIDIA H200, 2024-01-01 to 2024-02-09"
    assert len(catalogue["rows"]) == ROWS
    assert list(catalogue["tables"]["rows"]["metrics"]) == ["us", "gbps"]
    (row,) = [
        row for row in catalogue["rows"] if row["title"] == "write fp8:per_tensor triton" and "8192" in row["shape"]
    ]
    assert row["shape"] == "tokens 8192, requests 1, page order ordered"
    latest = row["latest"]["us"]
    change = latest["change"]
    assert (latest["run"], change["run"], change["verdict"], change["is_news"]) == (
        NIGHTS - 1,
        STEP_NIGHT,
        "worse",
        True,
    )
    assert change["after"] / change["before"] == pytest.approx(1.10, abs=0.02)


def test_a_rows_file_has_its_figures_with_runs_segments_and_changes(site):
    row = next(row for row in data_of(site, "catalogue")["rows"] if row["title"] == "write fp8:per_tensor triton")
    trend = data_of(site, row["file"])["us"]
    assert trend["runs"] == list(range(NIGHTS))
    assert {len(trend[name]) for name in ("figures", "lower", "upper", "kernels")} == {NIGHTS}
    assert trend["segments"] == [{"start": 20, "reasons": ["driver 580.159 → 585.20"], "compared": False}]
    assert [change["bad"] for change in trend["changes"]] == [STEP_NIGHT]


def test_a_row_that_is_not_ok_says_why_and_keeps_its_earlier_figures(site):
    row = next(row for row in data_of(site, "catalogue")["rows"] if row["title"] == "write fp8:per_tensor vllm")
    assert (row["is_ok"], row["status"], row["reason"]) == (False, "incorrect", "17 bytes differ")
    assert len(data_of(site, row["file"])["us"]["figures"]) == NIGHTS - 1


def test_pages_hold_no_data_and_name_no_other_host(site):
    pages = [path for path in site.iterdir() if path.suffix in (".html", ".css", ".js") and "plotly" not in path.name]
    assert {path.name for path in pages} == {"index.html", "dashboard.css", "dashboard.js", "chart.js", "texts.js"}
    for page in pages:
        assert not re.search(r"https?://|//\w+\.\w+/|innerHTML|eval\(", page.read_text(encoding="utf-8")), page.name


def test_a_later_site_replaces_an_earlier_one_and_leaves_other_files_alone(tmp_path):
    url = f"memory://{uuid.uuid4()}"
    write_store(url, runs=2, rows=3)
    (tmp_path / "dashboard-data").mkdir()
    (tmp_path / "dashboard-data" / "rows-99.js").write_text("stale", encoding="ascii")
    (tmp_path / "CNAME").write_text("bench.example", encoding="ascii")
    write_dashboard(History(url), tmp_path)
    names = {path.name for path in (tmp_path / "dashboard-data").iterdir()}
    assert names == {"catalogue.js", "rows-0.js", "rows-1.js", "rows-2.js"}
    assert (tmp_path / "CNAME").is_file()


def test_an_empty_history_is_a_mistake(tmp_path):
    with pytest.raises(HistoryError, match="holds no run with a figure; add one with"):
        write_dashboard(History(str(tmp_path / "store")), tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_figures_keep_six_digits_and_what_is_not_finite_is_null():
    assert [six_digits(value) for value in (1.23456789, 1e-9, float("nan"), float("inf"))] == [
        1.23457,
        1e-9,
        None,
        None,
    ]


# The pages in a browser


def choose(page, name, value):
    page.select_option(f'#filters select[name="{name}"]', value)


def titles(page):
    return page.locator("#rows tr button").all_inner_texts()


def chart_is_drawn(page):
    page.wait_for_selector("#chart .main-svg")


def test_the_page_opens_with_the_regression_first_its_chart_and_the_commits_to_bisect(site, chromium):
    with visit(chromium, f"file://{site}/index.html") as seen:
        chart_is_drawn(seen.page)
        assert titles(seen.page)[:2] == ["write fp8:per_tensor triton"] * 2
        assert seen.page.inner_text("#trend-title") == "write fp8:per_tensor triton"
        notes = seen.page.inner_text("#notes")
        commits = [f"{number * 0x9E3779B1 % 2**32:08x}" * 5 for number in (STEP_NIGHT - 1, STEP_NIGHT)]
        assert f"bisect: good {commits[0][:12]}, bad {commits[1][:12]}" in notes
        assert "2024-01-21: new driver 580.159 → 585.20; not compared with figures before" in notes
        assert "incorrect" in seen.page.inner_text("#rows")
        assert (seen.problems, seen.outgoing) == ([], [])


def test_filters_narrow_the_table_and_say_how_many_rows_are_left(site, chromium):
    with visit(chromium, f"file://{site}/index.html") as seen:
        page = seen.page
        choose(page, "operation", "gather")
        choose(page, "format", "bf16:raw")
        choose(page, "provider", "vllm")
        assert titles(page) == ["gather bf16:raw vllm"] * 2
        assert page.inner_text("#count") == f"2 of {ROWS} rows"
        choose(page, "state", "worse")
        assert (titles(page), page.inner_text("#trend-about")) == ([], "No row matches the filters.")
        choose(page, "operation", "")
        choose(page, "format", "")
        choose(page, "provider", "")
        assert titles(page) == ["write fp8:per_tensor triton"] * 2
        choose(page, "state", "not ok")
        assert titles(page) == ["write fp8:per_tensor vllm"] * 2
        assert {"arch", "device"} <= set(
            page.locator("#filters select").evaluate_all("all => all.map(one => one.name)")
        )
        assert (seen.problems, seen.outgoing) == ([], [])


def test_hovering_a_figure_shows_its_commit_and_dragging_zooms_in(site, chromium):
    with visit(chromium, f"file://{site}/index.html") as seen:
        page = seen.page
        chart_is_drawn(page)
        points = page.locator("#chart .scatterlayer .trace").first.locator(".point")
        box = points.nth(10).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#chart .hoverlayer .hovertext")
        hover = page.locator("#chart .hoverlayer").text_content()
        assert f"commit {10 * 0x9E3779B1 % 2**32:08x}"[:19] in hover
        assert "driver 580.159" in hover
        plot = page.locator("#chart .nsewdrag").bounding_box()
        span = "(([from, to]) => new Date(to) - new Date(from))(document.getElementById('chart').layout.xaxis.range)"
        before = page.evaluate(span)
        page.mouse.move(plot["x"] + 0.4 * plot["width"], plot["y"] + 0.5 * plot["height"])
        page.mouse.down()
        page.mouse.move(plot["x"] + 0.6 * plot["width"], plot["y"] + 0.5 * plot["height"], steps=5)
        page.mouse.up()
        assert page.evaluate(span) == pytest.approx(0.2 * before, rel=0.05)
        assert (seen.problems, seen.outgoing) == ([], [])


def test_no_button_of_the_chart_sends_it_to_a_server(site, chromium):
    with visit(chromium, f"file://{site}/index.html") as seen:
        chart_is_drawn(seen.page)
        labels = seen.page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
        assert labels == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes", "Download plot as a PNG"]


def test_choosing_a_row_or_another_figure_draws_it(site, chromium):
    with visit(chromium, f"file://{site}/index.html") as seen:
        page = seen.page
        chart_is_drawn(page)
        page.locator("#rows tr button", has_text="gather fp8_ds_mla:pow2 vllm").first.click()
        assert page.inner_text("#trend-title") == "gather fp8_ds_mla:pow2 vllm"
        choose(page, "figure", "rows gbps")
        page.wait_for_function("document.querySelector('#chart .ytitle')?.textContent.includes('higher is better')")
        assert page.locator('#rows tr[aria-current="true"]').count() == 1
        assert (seen.problems, seen.outgoing) == ([], [])


@pytest.mark.parametrize("width", [1400, 700])
def test_nothing_sticks_out_at_either_width(site, chromium, width):
    with visit(chromium, f"file://{site}/index.html", width) as seen:
        chart_is_drawn(seen.page)
        assert seen.overflowing() == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_a_hostile_run_says_is_shown_as_text(chromium, tmp_path):
    url = f"memory://{uuid.uuid4()}"
    device = {"name": HOSTILE, "uuid": HOSTILE, "driver": HOSTILE}
    for night in range(3):
        rows = timed_rows([case()], [8.0], binary_sha256=HOSTILE).assign(device=HOSTILE, data=HOSTILE)
        if night == 2:
            rows = rows.assign(status="incorrect", reason=HOSTILE)
        manifest = {"device": device, "git": {"commit": HOSTILE}, "tool_version": HOSTILE, "run_id": f"run-{night}"}
        History(url).add(generated_run(night, rows, **manifest))
    index = write_dashboard(History(url), tmp_path)
    with visit(chromium, f"file://{index}", width=700) as seen:
        page = seen.page
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        chart_is_drawn(page)
        assert HOSTILE in page.inner_text("#rows")
        assert HOSTILE in page.inner_text("#trend-about")
        point = page.locator("#chart .point").first.bounding_box()
        page.mouse.move(point["x"] + 3, point["y"] + 3)
        assert HOSTILE[:12] in page.locator("#chart .hoverlayer .hovertext").text_content()
        assert page.locator("main script, main img").count() == 0
        assert seen.overflowing() == []
        assert (seen.problems, seen.outgoing) == ([], [])
