"""Judged rows as tables and pictures: verdict first, undefined as a dash, nothing that looks better than it is."""

import dataclasses

import pandas as pd
import pytest

from dsmla_bench.evals import published
from dsmla_bench.evals.scores import JudgedRow
from dsmla_bench.reports.accuracy_plots import forest_figure, format_styles, kl_bytes_figure
from dsmla_bench.reports.accuracy_tables import accuracy_tables, reference_tables
from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.renderings import to_csv, to_markdown, to_text

WORSE = JudgedRow(
    "gsm8k", "strict-match", "exact_match", "nvfp4_ds_mla", "bf16", "worse", True, "mean", True, True,
    documents=200, clusters=200, baseline_score=0.820, score=0.765, delta=-0.055, delta_lo=-0.1013, delta_hi=-0.0165,
    method="tango", p=0.012726, p_holm=0.0254, margin=0.01, resolution=0.0578, lost=14, gained=3,
)  # fmt: skip
SAME_BITS = JudgedRow(
    "prose", "none", "bits_per_byte", "nvfp4_ds_mla", "bf16", "equivalent", True, "mean", False, False,
    documents=80, clusters=80, baseline_score=2.0, score=2.001, delta=0.001, delta_lo=0.0005, delta_hi=0.0015,
    method="bootstrap-t", p=0.0001, p_holm=0.0002, margin=0.01, resolution=0.0004,
    notes=("a significant loss, but within the margin",),
)  # fmt: skip
UNPAIRED = JudgedRow(
    "humaneval", "none", "pass@1", "nvfp4_ds_mla", "bf16", "not significant", False, "mean", True, True,
    documents=164, baseline_score=139 / 164, score=148 / 164, delta=9 / 164, delta_lo=-0.0167, delta_hi=0.1264,
    method="normal", p=0.133, p_holm=0.133, margin=0.01, resolution=0.1023,
)  # fmt: skip
UNSURE = dataclasses.replace(
    WORSE, format="fp8_ds_mla", verdict="inconclusive", needed=310, score=0.82, delta=0.0, delta_lo=-0.0188,
    delta_hi=0.0188, p=1.0, p_holm=1.0, lost=0, gained=0, resolution=0.014,
)  # fmt: skip
UNLIKE = JudgedRow(
    "mmlu", "none", "acc", "fp8_ds_mla", "bf16", "not comparable", False, "mean", True, True,
    baseline_score=0.7, score=0.6, notes=("num_fewshot differs: 5 and 0",),
)  # fmt: skip
FIDELITY = pd.DataFrame(
    {
        "format": ["bf16 (A/A)", "fp8_ds_mla", "nvfp4_ds_mla"],
        "bytes_per_token": [1152, 656, 352],
        "kl_mean": [1e-6, 3.7e-3, 8.2e-2],
        "kl_lo": [None, 3e-3, 7e-2],
        "kl_hi": [None, 4e-3, 9e-2],
        "kl_p99": [1e-4, 4e-2, 0.5],
        "top1_agreement": [0.9999, 0.99, 0.971],
        "is_floor": [True, False, False],
    }
)


def frame(*rows):
    return pd.DataFrame([dataclasses.asdict(row) for row in rows]).convert_dtypes()


JUDGED = frame(WORSE, SAME_BITS, UNPAIRED, UNSURE, UNLIKE)
STYLES = format_styles(JUDGED, FIDELITY)


def lines_of(text, *words):
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_the_headline_says_the_verdicts_those_first_that_need_attention():
    headline = accuracy_tables(JUDGED, title="Accuracy of a model").headline
    assert headline == (
        "Accuracy of a model. nvfp4_ds_mla: 1 worse (gsm8k exact_match,strict-match), 1 not significant, 1 equivalent; "
        "fp8_ds_mla: 1 inconclusive, 1 not comparable (mmlu acc)."
    )


def test_a_table_of_one_format_has_every_figure():
    text = to_text(accuracy_tables(JUDGED))
    (line,) = lines_of(text, "gsm8k", "-10.13 … -1.65")
    assert line.split() == [
        "gsm8k", "exact_match,strict-match", "worse", "-5.50", "-10.13", "…", "-1.65", "82.00", "76.50",
        "0.013", "0.025", "±5.78", "tango", "200", "14", "3",
    ]  # fmt: skip
    (line,) = lines_of(text, "prose", "bootstrap-t")
    assert "+0.001  +0.0005 … +0.0015" in line
    assert "2.001" in line
    assert line.rstrip().endswith("–       –")


def test_formats_stand_side_by_side_with_what_would_settle_them():
    overview = accuracy_tables(JUDGED).tables[0]
    by_name = {(column.group, column.name): column.cells for column in overview.columns}
    assert by_name["", "task"] == ("gsm8k", "prose", "humaneval", "mmlu")
    assert by_name["fp8_ds_mla", "verdict"] == ("inconclusive (310)", "–", "–", "not comparable")
    assert by_name["nvfp4_ds_mla", "Δ"] == ("-5.50", "+0.001", "+5.49", "–")


def test_an_unpaired_gain_looks_like_no_improvement():
    """Case C7: no "improved", no arrow."""
    text = to_text(accuracy_tables(frame(UNPAIRED)))
    assert "unpaired, not significant" in text
    assert "0.133" in text
    assert not any(word in text.lower() for word in ("improved", "better", "↑"))
    assert "without documents' scores" in text
    assert "without documents' scores" not in to_text(accuracy_tables(frame(WORSE)))


def test_the_footer_says_what_could_have_shown():
    notes = accuracy_tables(JUDGED).notes
    assert "margin: 1 pt of accuracy, 0.5 % of other scores" in notes
    assert any("minimum detectable effect" in note and "±1.40 to ±10.23 pt" in note for note in notes)


def test_what_must_be_known_of_rows_names_them():
    assert accuracy_tables(JUDGED).reasons == (
        "nvfp4_ds_mla, prose bits_per_byte: a significant loss, but within the margin",
        "fp8_ds_mla, mmlu acc: num_fewshot differs: 5 and 0",
    )
    many = frame(*(dataclasses.replace(UNLIKE, task=f"task {number}") for number in range(9)))
    assert accuracy_tables(many).reasons == ("fp8_ds_mla, 9 scores: num_fewshot differs: 5 and 0",)


def test_fidelity_names_the_floor_and_leaves_out_what_was_not_measured():
    tables = accuracy_tables(JUDGED, FIDELITY)
    text = to_text(tables)
    assert lines_of(text, "nvfp4_ds_mla", "0.082", "97.10")
    assert "bf16 (A/A) is the floor" in text
    assert "median" not in text


def test_perplexities_are_shown_in_percent():
    row = dataclasses.replace(
        SAME_BITS, metric="word_perplexity", aggregation="exp_mean", baseline_score=8.0, score=8.16,
        delta=0.0198, delta_lo=0.01, delta_hi=None, margin=0.004988,
    )  # fmt: skip
    assert "+2.00 %  +1.01 % … –" in to_text(accuracy_tables(frame(row)))


def test_no_rows_are_no_error():
    tables = accuracy_tables(JUDGED.iloc[:0])
    assert (tables.headline, tables.tables, tables.notes) == ("No task was scored.", (), ())


def test_every_layout_takes_the_tables():
    tables = accuracy_tables(JUDGED, FIDELITY)
    assert max(map(len, to_text(tables, width=90).splitlines())) <= 90
    assert "| worse | -5.50 |" in to_markdown(tables)
    assert ",," in to_csv(JUDGED)
    assert "NaN" not in to_csv(JUDGED)


def test_the_published_table_holds_every_difference_with_its_resolution_beside_the_users():
    rows = pd.DataFrame([dataclasses.asdict(row) for row in published.rows()])
    text = to_text(reference_tables(rows, JUDGED))
    assert lines_of(text, "DeepSeek-V4-Flash", "HumanEval", "164", "fp8_ds_mla 84.76", "+5.49", "10.23", "0.133")
    assert lines_of(text, "GLM-5.2", "nvfp4, outer scale, bf16 RoPE", "+0.0082", "0.1345", "8")
    assert "8 local-inference-lab/vllm issue 144;" in text
    assert lines_of(text, "gsm8k", "worse", "-5.50")
    assert '"passed"; no score is published' in text
    assert text.startswith("24 of 28 published differences are below what their own comparison could resolve.")


def test_the_forest_has_a_marker_for_every_difference_and_turns_losses_to_the_left():
    figure = forest_figure(JUDGED, STYLES)
    accuracy, other = figure.axes
    assert [text.get_text() for text in accuracy.get_yticklabels()] == [
        "gsm8k exact_match,strict-match",
        "humaneval pass@1",
    ]
    drawn = [(line.get_marker(), float(line.get_xdata()[0])) for line in accuracy.lines if line.get_marker() != "None"]
    assert sorted(drawn) == [("o", pytest.approx(-5.5)), ("o", pytest.approx(5.4878, abs=1e-4)), ("s", 0.0)]
    (more_bits,) = [line for line in other.lines if line.get_marker() != "None"]
    assert float(more_bits.get_xdata()[0]) == pytest.approx(-0.05)


def test_unpaired_scores_have_hollow_markers():
    (axes,) = forest_figure(frame(WORSE, UNPAIRED), STYLES).axes
    faces = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() != "None"]
    assert [face == "white" for face in faces] == [False, True]


def test_kl_is_drawn_over_bytes_with_its_floor():
    (axes,) = kl_bytes_figure(FIDELITY, STYLES).axes
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() != "None"]
    assert places == [(656.0, 3.7e-3), (352.0, 8.2e-2)]
    assert any(list(line.get_ydata()) == [1e-6, 1e-6] for line in axes.lines)


def looks(figure):
    """Colour and marker of every format in the legend."""
    handles = zip(figure.legends[0].get_lines(), figure.legends[0].get_texts(), strict=False)
    return {text.get_text(): (line.get_color(), line.get_marker()) for line, text in handles}


def test_a_format_looks_alike_in_both_pictures():
    """The repeated baseline is a row of the forest and a line in the picture of KL: it takes no format's colour."""
    judged = frame(dataclasses.replace(UNSURE, format="bf16 (A/A)"), UNSURE, WORSE)
    forest = looks(forest_figure(judged, format_styles(judged)))
    kl = looks(kl_bytes_figure(FIDELITY, format_styles(judged, FIDELITY)))
    for name in ("fp8_ds_mla", "nvfp4_ds_mla"):
        assert forest[name] == kl[name]
    assert len({forest[name] for name in ("bf16 (A/A)", "fp8_ds_mla", "nvfp4_ds_mla")}) == 3


def test_nothing_to_draw_is_said():
    with pytest.raises(NothingToPlotError, match="no score"):
        forest_figure(frame(UNLIKE), STYLES)
    with pytest.raises(NothingToPlotError, match="no format"):
        kl_bytes_figure(FIDELITY.assign(kl_mean=0.0), STYLES)
