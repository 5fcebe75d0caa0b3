"""Exports, each read by its consumer's parser or held against its schema, and none with a figure that is not one."""

import csv
import io
import json
import math

import jsonschema
import pytest
from builders import MANIFEST, case, h200_sweep, refused, run_of, timed
from junitparser import JUnitXml
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_report_page import accuracy_run, error_run
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.reports import exporters
from dsmla_bench.reports.exporters import all_exporters, get_exporter
from dsmla_bench.results import RunError
from dsmla_bench.rows import STATUSES

LABEL = 'H200 – Prüfstand 试验 µs "quoted" \\back\nnext'
NAMES = (
    *("bencher", "csv", "github-action-benchmark", "github-action-benchmark-bigger", "hud", "json", "junit"),
    *("markdown", "openmetrics"),
)
NUMBER = {"type": "number"}
GITHUB_ACTION_BENCHMARK = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "unit": {"type": "string", "minLength": 1},
            "value": NUMBER,
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
    },
}
"""The custom tools of github-action-benchmark, as its README describes them."""
BENCHER = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"minLength": 1, "maxLength": 1024},
    "additionalProperties": {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": "^[a-z0-9-]{1,64}$"},
        "additionalProperties": {
            "type": "object",
            "required": ["value"],
            "additionalProperties": False,
            "properties": {"value": NUMBER, "lower_value": NUMBER, "upper_value": NUMBER},
        },
    },
}
"""Bencher Metric Format."""
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
HUD = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["timestamp", "schema_version", "name", "benchmark", "model", "metric"],
        "additionalProperties": False,
        "properties": {
            "timestamp": {"type": "integer", "minimum": 1},
            "schema_version": {"const": "v3"},
            "name": {"type": "string"},
            "head_sha": {"type": "string"},
            "runners": {"type": "array", "items": TEXTS},
            "dependencies": {"type": "object", "additionalProperties": TEXTS},
            "benchmark": {
                "type": "object",
                "required": ["name", "mode", "dtype", "extra_info"],
                "properties": {"extra_info": TEXTS},
            },
            "model": TEXTS,
            "metric": {
                "type": "object",
                "required": ["name", "benchmark_values"],
                "properties": {
                    "name": {"type": "string"},
                    "benchmark_values": {"type": "array", "minItems": 1, "items": NUMBER},
                },
            },
        },
    },
}
"""A record of PyTorch's table oss_ci_benchmark_v3."""
SCHEMAS = {
    "github-action-benchmark": GITHUB_ACTION_BENCHMARK,
    "github-action-benchmark-bigger": GITHUB_ACTION_BENCHMARK,
    "bencher": BENCHER,
    "hud": HUD,
}


def strict(text):
    """JSON as its standard has it: no NaN, no Infinity, no name twice in one object."""

    def unique(pairs):
        assert len(dict(pairs)) == len(pairs), "a name occurs twice"
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def every_status(folder):
    """An ok row beside a row of every other status, and one that the clock did not resolve."""
    statuses = [status for status in STATUSES if status != "ok"]
    rows = [refused(case(tokens=2 + number), status, LABEL) for number, status in enumerate(statuses)]
    return run_of(folder, [timed(case(tokens=1), 6.4), *rows, timed(case(tokens=99), [0.0, 0.0])])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of every kind, and the sweep of all statuses."""
    folder = tmp_path_factory.mktemp("runs")
    kernels = run_of(folder, h200_sweep(), git={"commit": "ab" * 20})
    return {
        "kernels": kernels,
        "errors": error_run(folder),
        "accuracy": accuracy_run(folder),
        "statuses": every_status(folder),
    }


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("kind", ["kernels", "errors", "accuracy", "statuses"])
def test_json_exports_meet_their_schemas(runs, kind, name):
    if (kind, name) in {("errors", "github-action-benchmark-bigger"), ("accuracy", "github-action-benchmark")}:
        with pytest.raises(RunError, match="has no figure for which"):
            get_exporter(name).export(runs[kind])
        return
    jsonschema.validate(strict(get_exporter(name).export(runs[kind])), SCHEMAS[name])


def test_the_registry_finds_every_exporter_in_its_file():
    assert tuple(all_exporters()) == NAMES
    with pytest.raises(ValueError, match="no exporter 'xls'; available: bencher, csv, "):
        get_exporter("xls")


def test_an_exporter_is_added_by_one_file(tmp_path, monkeypatch):
    (tmp_path / "row_count.py").write_text(
        "from dsmla_bench.reports.exporters import Exporter\n"
        'EXPORTERS = (Exporter("row-count", "how many rows", lambda run: f"{len(run.rows())}\\n"),)\n'
    )
    monkeypatch.setattr(exporters, "__path__", [*exporters.__path__, str(tmp_path)])
    assert get_exporter("row-count").export(run_of(tmp_path, [timed(case(), 2.0)])) == "1\n"


# What is not a figure


@pytest.mark.parametrize("name", ["bencher", "github-action-benchmark", "hud"])
def test_only_rows_with_figures_reach_a_consumer_of_figures(runs, name):
    text = get_exporter(name).export(runs["statuses"])
    assert "tokens 1," in text
    assert not [number for number in range(2, 100) if f"tokens {number}," in text]


def test_a_run_without_any_figure_is_no_empty_success(tmp_path):
    run = run_of(tmp_path, [refused(case(), "oom", "out of memory")])
    for name in ("bencher", "github-action-benchmark", "hud"):
        with pytest.raises(RunError, match="has no figure"):
            get_exporter(name).export(run)
    with pytest.raises(RunError, match="holds no row to export"):
        get_exporter("junit").export(run_of(tmp_path, []))


def test_names_are_unique_and_the_same_in_every_run(runs, tmp_path):
    text = get_exporter("bencher").export(runs["kernels"])
    assert len(strict(text)) == 140
    one = get_exporter("bencher").export(run_of(tmp_path, [timed(case(tokens=128), 9.9)]))
    assert set(strict(one)) <= set(strict(text))
    assert list(strict(one)) == [
        "write fp8_ds_mla:pow2 triton, arch sm90, tokens 128, requests 1, block size 64, page order ordered"
    ]
    hot = [timed(case("decode", l2_state="hot", heads=64, topk=2048, data="zeros"), 9.9)]
    (name,) = strict(get_exporter("bencher").export(run_of(tmp_path, hot)))
    assert name.endswith("page order shuffled, l2 state hot, data zeros, heads 64, topk 2048")


def test_figures_are_not_rounded(tmp_path):
    run = run_of(tmp_path, [timed(case(), [0.1 + 0.2] * 3)])
    (measures,) = strict(get_exporter("bencher").export(run)).values()
    assert measures["us"]["value"] == 0.1 + 0.2
    assert ",0.30000000000000004," in get_exporter("csv").export(run)


# OpenMetrics


def families_of(run):
    return {family.name: family for family in text_string_to_metric_families(get_exporter("openmetrics").export(run))}


def test_openmetrics_is_read_by_prometheus_in_base_units(runs):
    families = families_of(runs["kernels"])
    time = families["dsmla_time_seconds"]
    assert (time.type, time.unit, len(time.samples)) == ("gauge", "seconds", 140)
    wanted = {"operation": "write", "format": "fp8", "provider": "vllm", "tokens": "8192", "page_order": "ordered"}
    (sample,) = [sample for sample in time.samples if wanted.items() <= sample.labels.items()]
    assert math.isclose(sample.value, 29.0e-6, rel_tol=1e-12)
    assert families["dsmla_bandwidth_bytes_per_second"].unit == "bytes_per_second"
    assert {"dsmla_rel_l2_error", "dsmla_row_ok"} <= set(families_of(runs["errors"]))
    assert {sample.value for sample in families_of(runs["accuracy"])["dsmla_accuracy"].samples} == {
        0.745,
        0.795,
        0.8,
        0.805,
    }


def test_openmetrics_marks_rows_without_figures(runs):
    rows = families_of(runs["statuses"])["dsmla_row_ok"].samples
    assert {sample.labels["status"]: sample.value for sample in rows} == {
        status: float(status == "ok") for status in STATUSES
    }
    assert len(families_of(runs["statuses"])["dsmla_time_seconds"].samples) == 1


def test_openmetrics_escapes_what_labels_may_not_hold(tmp_path):
    run = run_of(tmp_path, [timed(case(data=LABEL), 2.0)], device={"name": LABEL})
    (sample,) = families_of(run)["dsmla_time_seconds"].samples
    assert (sample.labels["data"], sample.labels["device"]) == (LABEL, LABEL)


# JUnit


def test_junit_has_a_test_case_per_row_with_its_outcome(runs):
    document = JUnitXml.fromstring(get_exporter("junit").export(runs["statuses"]).encode())
    (suite,) = document
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (11, 1, 5, 3)
    kinds = {result.type: type(result).__name__ for found in suite for result in found.result}
    assert kinds == {
        "skipped": "Skipped", "incorrect": "Failure", "unresolved": "Skipped", "throttled": "Error", "oom": "Error",
        "timeout": "Error", "compile_error": "Error", "runtime_error": "Error",
    }  # fmt: skip
    messages = {result.message for found in suite for result in found.result}
    assert " ".join(LABEL.split()) in {" ".join(message.split()) for message in messages}
    timed_rows = [found for found in suite if found.time is not None]
    assert [found.time for found in timed_rows] == [6.4e-6]


def test_junit_leaves_out_characters_that_xml_cannot_hold(tmp_path):
    run = run_of(tmp_path, [refused(case(), "oom", "bell \x07 rings")])
    ((found,),) = JUnitXml.fromstring(get_exporter("junit").export(run).encode())
    assert found.result[0].message == "bell  rings"


# Everything else


def test_json_has_every_row_and_null_for_what_is_undefined(runs):
    document = strict(get_exporter("json").export(runs["statuses"]))
    assert document["manifest"]["device"] == MANIFEST["device"]
    rows = document["tables"]["rows"]
    assert [row["status"] for row in rows][:2] == ["ok", "skipped"]
    assert [row["us"] for row in rows] == [6.4, *[None] * 10]
    assert strict(get_exporter("json").export(runs["accuracy"]))["tables"]["judged"][2]["verdict"] == "worse"


def test_csv_has_every_row_and_empty_cells_for_what_is_undefined(runs):
    rows = list(csv.DictReader(io.StringIO(get_exporter("csv").export(runs["statuses"]))))
    assert [row["us"] for row in rows] == ["6.4", *[""] * 10]
    assert rows[1]["reason"] == LABEL


def test_markdown_begins_with_the_summary_of_formats(runs):
    text = get_exporter("markdown").export(runs["kernels"])
    assert text.startswith("|  | bf16 | fp8_ds_mla | fp8 | nvfp4_ds_mla |\n")
    assert "### gather · nvfp4_ds_mla" in text


def test_the_command_writes_utf8_whatever_the_locale_and_lists_consumers(runs, tmp_path):
    path = str(runs["statuses"].path)
    done = CliRunner().invoke(app, ["export", path, "--to", "json", "--out", str(tmp_path / "run.json")])
    assert (done.exit_code, done.output) == (0, "")
    assert LABEL in {
        row["reason"] for row in strict((tmp_path / "run.json").read_text(encoding="utf-8"))["tables"]["rows"]
    }
    printed = CliRunner().invoke(app, ["export", path, "--to", "json"])
    assert printed.stdout_bytes == (tmp_path / "run.json").read_bytes()
    listed = CliRunner().invoke(app, ["export"])
    assert [line.split()[0] for line in listed.output.splitlines()] == list(NAMES)


def test_seconds_of_junit_have_no_exponent(tmp_path):
    assert 'time="0.000000250000"' in get_exporter("junit").export(run_of(tmp_path, [timed(case(), 0.25)]))
