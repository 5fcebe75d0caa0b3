"""What a format costs, in a few figures from each run: the lines of a report's summary.

A ``Measure`` is one figure of every format: bytes, time, error or accuracy. Of an operation its largest shape is taken,
by the rows that pictures draw; of errors the data whose sigma is nearest to 1, with default scales; of accuracies what
is neither the baseline nor a probe. Formats are called by their bare name where it means their revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from dsmla_bench.reports.accuracy_report import judged_of
from dsmla_bench.reports.accuracy_tables import ORDER
from dsmla_bench.reports.accuracy_text import delta_text
from dsmla_bench.reports.comparison import Comparison
from dsmla_bench.reports.curves import NothingToPlotError, curves, with_shape
from dsmla_bench.reports.error_frame import of_one_provider, shown_sources
from dsmla_bench.reports.error_tables import compact
from dsmla_bench.reports.judged import VERDICTS
from dsmla_bench.reports.kernel_frame import AXES, BASELINE, amount, in_order, kernel_frame, production_of
from dsmla_bench.reports.tables import UNDEFINED, marks, significant, speed_up_text
from dsmla_bench.results import Run
from dsmla_bench.rows import OWN_AXES

Subject = Literal["bytes", "time", "error", ""]


@dataclass(frozen=True)
class Measure:
    """One figure of every format.

    group, label  what it is of, and what it is with its unit: "write, 65536 tokens", "triton µs"
    cells         texts by format
    values        the numbers behind them, where defined
    subject       which of the costs that formats are weighed by it is, "" for none
    """

    group: str
    label: str
    cells: Mapping[str, str]
    values: Mapping[str, float] = field(default_factory=dict)
    subject: Subject = ""


def kernel_measures(run: Run, revisions: Mapping[str, str]) -> Iterator[Measure]:
    """Bytes per token, and of every operation's largest shape the time, the share of the floor and the speed-ups."""
    rows = run.rows()
    yield from _bytes_written(rows, revisions)
    for name, shape in _largest_shapes(rows).items():
        frame = kernel_frame(shape)
        lines = {_name(line, revisions): line for _, line in frame.iterrows()}
        for provider in (BASELINE, *production_of(shape)):
            if f"{provider}_us" in frame:
                yield _times(name, lines, provider)
        if f"{BASELINE}_us" in frame:
            shares = {label: 100 * line[f"{BASELINE}_bound_share"] for label, line in lines.items()}
            yield _numbers(name, f"{BASELINE} floor %", shares, significant)
        for other in production_of(shape):
            if f"speedup_over_{other}" in frame:
                cells = {label: speed_up_text(line, BASELINE, other) for label, line in lines.items()}
                yield Measure(name, f"speed-up over {other}", cells)
    if not (rows["status"] == "ok").any():
        yield from _predicted(rows, revisions)


def error_measures(run: Run, revisions: Mapping[str, str]) -> Iterator[Measure]:
    """Bytes per token, rel-L2 of both parts, and what attention sees, on one source of data."""
    errors = run.table("errors")
    plain = of_one_provider(_by_default(errors[errors["only"].isna()]))
    if plain.empty:
        return
    source = shown_sources(plain)[0]
    yield bytes_measure(_column(plain, "bytes_per_token", revisions))
    here = plain[plain["data"] == source]
    for part in ("NoPE", "RoPE", "both"):
        found = _column(here[here["part"] == part], "rel_l2", revisions)
        label = "rel-L2" if part == "both" else f"{part} rel-L2"
        yield _numbers(f"error, {source}", label, found, compact, "error" if part == "both" else "")
    if run.has_table("attention"):
        attention = of_one_provider(_by_default(run.table("attention")))
        seen = attention[(attention["data"] == source) & (attention["against"] == "bf16")]
        found = _column(seen, "output_rel_l2", revisions)
        yield _numbers(f"error, {source}", "attention output rel-L2", found, compact)


def accuracy_measures(run: Run, revisions: Mapping[str, str]) -> Iterator[Measure]:
    """Bytes per token, verdicts, the largest loss of an accuracy, and KL."""
    variants = run.table("variants")
    shown = set(variants.loc[~variants["is_probe"], "format"])
    known = variants[variants["format"].isin(shown) & variants["bytes_per_token"].notna()]
    yield bytes_measure(dict(zip(known["format"], known["bytes_per_token"], strict=True)))
    judged = judged_of(run)
    by_format = {str(name): rows for name, rows in judged.groupby("format", sort=False) if name in shown}
    verdicts = {name: _counted(rows["verdict"], ORDER) for name, rows in by_format.items()}
    baseline = {str(name): "baseline" for name in variants.loc[variants["is_baseline"], "format"] if name in shown}
    yield Measure("accuracy", "task scores", baseline | verdicts)
    yield Measure("accuracy", "largest loss, points", {name: _largest_loss(rows) for name, rows in by_format.items()})
    if run.has_table("fidelity"):
        fidelity = run.table("fidelity")
        whole = fidelity[(fidelity["bucket"] == "all") & fidelity["format"].isin(shown)]
        found = dict(zip(whole["format"], whole["kl_mean"], strict=True))
        yield _numbers("accuracy", "KL to the baseline, nats", found, compact)


def comparison_measure(comparison: Comparison, head: Run, revisions: Mapping[str, str]) -> Measure:
    """The verdicts of every format."""
    formats = {row.row_id: short_name(row.format, row.revision, revisions) for row in head.summaries()}
    verdicts: dict[str, list[str]] = {}
    for found in comparison.judged:
        if found.row_id in formats:
            verdicts.setdefault(formats[found.row_id], []).append(found.verdict)
    cells = {name: _counted(said, VERDICTS) for name, said in verdicts.items()}
    return Measure("comparison", "verdicts against the base", cells)


def bytes_measure(found: Mapping[str, Any]) -> Measure:
    """What a token takes in the cache of one layer, by format."""
    return _numbers("memory", "bytes per token", found, compact, "bytes")


def short_name(format: str, revision: str, revisions: Mapping[str, str]) -> str:
    """``format``, or ``format:revision`` where that is not the one that the bare name means."""
    return format if revisions.get(format) == revision else f"{format}:{revision}"


def _name(line: Any, revisions: Mapping[str, str]) -> str:
    return short_name(str(line["format"]), str(line["revision"]), revisions)


def _numbers(
    group: str, label: str, found: Mapping[str, Any], text: Callable[[Any], str], subject: Subject = ""
) -> Measure:
    """Numbers by format as a measure; undefined ones are dashes."""
    values = {name: float(value) for name, value in found.items() if not pd.isna(value)}
    return Measure(group, label, {name: text(value) for name, value in found.items()}, values, subject)


def _bytes_written(rows: pd.DataFrame, revisions: Mapping[str, str]) -> Iterator[Measure]:
    """What a token takes in the cache: what ``write`` writes for one."""
    written = rows[(rows["operation"] == "write") & rows["bytes_written"].notna() & (rows["tokens"] > 0)]
    if not written.empty:
        found = written.assign(bytes_per_token=written["bytes_written"] // written["tokens"])
        yield bytes_measure(_column(found, "bytes_per_token", revisions))


def _times(group: str, lines: Mapping[str, pd.Series[Any]], provider: str) -> Measure:
    """A provider's times with their marks; the status of a row without one.

    A launch-bound time says nothing about a format, so formats are not weighed by it.
    """
    cells, values = {}, {}
    for name, line in lines.items():
        us, status, launch_bound = (line[f"{provider}_{metric}"] for metric in ("us", "status", "launch_bound"))
        if pd.isna(us):
            cells[name] = UNDEFINED if pd.isna(status) else str(status)
            continue
        cells[name] = significant(us) + marks(line, provider)
        if pd.isna(launch_bound) or not launch_bound:
            values[name] = float(us)
    return Measure(group, f"{provider} µs", cells, values, "time" if provider == BASELINE else "")


def _largest_shapes(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """ "decode, 128 requests, heads 128, topk 2048" → its rows, of every operation that was timed.

    Of ``variant`` the one that was measured first.
    """
    try:
        drawn = curves(rows)
    except NothingToPlotError:
        return {}
    shapes = {}
    for operation, group in in_order(drawn).groupby("operation", sort=False):
        words = []
        for axis in OWN_AXES:
            if group[axis].notna().any():
                first = rows.loc[(rows["operation"] == operation) & rows[axis].notna(), axis].iloc[0]
                value = first if axis == "variant" else group[axis].max()
                group = group[group[axis] == value]
                words.append(str(value) if axis == "variant" else f"{axis} {value}")
        largest = group[group["tokens"] == group["tokens"].max()]
        size = amount(*largest[["tokens", "queries"]].iloc[0])
        shapes[", ".join([str(operation), size, *words])] = _with_untimed(largest, rows)
    return shapes


def _with_untimed(drawn: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Drawn rows of one operation together with rows of the same shapes that have no time."""
    alike = rows[(rows["status"] != "ok") & (rows["operation"] == drawn["operation"].iloc[0])]
    for axis in AXES:
        alike = alike[alike[axis].isin(drawn[axis].dropna()) | (alike[axis].isna() & drawn[axis].isna().any())]
    both: pd.DataFrame = pd.concat([drawn, alike])
    return both


def _predicted(rows: pd.DataFrame, revisions: Mapping[str, str]) -> Iterator[Measure]:
    """Where nothing was timed, the predicted floor of every operation's largest shape, on the first architecture."""
    known = rows[rows["predicted_us"].notna()]
    for key, group in with_shape(in_order(known)).groupby(["arch", "operation", "shape"], sort=False):
        arch, operation, shape = map(str, key)
        largest = group[group["tokens"] == group["tokens"].max()]
        size = amount(*largest[["tokens", "queries"]].iloc[0])
        words = ", ".join(filter(None, [f"{operation} on {arch}", size, shape]))
        yield _numbers(words, "predicted floor µs", _column(largest, "predicted_us", revisions), significant)


def _by_default(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with default scales, or the only scales that there are, and latents as they are."""
    scales, factors = rows["scale_origin"].fillna("default"), rows["latent_scale"].fillna(1.0)
    return rows[(scales == "default") & (factors == 1.0)]


def _column(rows: pd.DataFrame, column: str, revisions: Mapping[str, str]) -> dict[str, Any]:
    return {_name(line, revisions): line[column] for line in rows.to_dict("records")}


def _counted(verdicts: Iterable[Any], order: Iterable[str]) -> str:
    """ "1 worse, 5 equivalent", in this order."""
    found = Counter(verdicts)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in order if found[verdict])


def _largest_loss(rows: pd.DataFrame) -> str:
    """The most negative delta of an accuracy, in points, with its task: "-5.50 (gsm8k)"; a dash without a loss."""
    accuracies = rows[rows["bounded"].astype(bool) & rows["higher_is_better"].fillna(False) & rows["delta"].notna()]
    if accuracies.empty or accuracies["delta"].min() >= 0:
        return UNDEFINED
    worst = {str(name): value for name, value in accuracies.sort_values("delta").iloc[0].items()}
    return f"{delta_text(worst, worst['delta'])} ({worst['task']})"
