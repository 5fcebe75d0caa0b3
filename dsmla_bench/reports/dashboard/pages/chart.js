// The chart of one trend, drawn with plotly, and the notes below it.
//
// trend   {runs, figures, lower, upper, kernels: an entry per figure; segments: [{start, reasons, compared}];
//         changes: [{good, bad, before, after, verdict, kernel}]}, where start, good and bad count figures
// runs    the runs of its table; an entry of trend.runs is a number in it
"use strict";

// Okabe and Ito's colours, which the colour-blind tell apart; symbols do the same in black and white.
const COLOURS = ["#0072b2", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00"];
const SYMBOLS = ["circle", "square", "diamond", "cross", "x", "star"];
const VERDICTS = {
  worse: { symbol: "triangle-up", color: "#d55e00" },
  better: { symbol: "triangle-down", color: "#00558c" },
};
const MOST_NAMED = 6;

// Buttons by name: among plotly's own are some that send the chart to a server.
const BUTTONS = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"];
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [BUTTONS] };

function drawChart(trend, runs, metric) {
  const traces = [...seriesTraces(trend, runs, metric), ...changeTraces(trend, runs, metric)];
  Plotly.react("chart", traces, layoutOf(trend, runs, metric), CONFIG);
}

function seriesTraces(trend, runs, metric) {
  const texts = hoverTexts(trend, runs, metric);
  const breaks = new Set(trend.segments.filter(({ compared }) => !compared).map(({ start }) => start));
  const traces = new Map();
  trend.runs.forEach((run, index) => {
    const name = seriesName(runs[run]);
    if (!traces.has(name)) traces.set(name, emptyTrace(name, traces.size));
    if (breaks.has(index)) addPoint(traces.get(name), null, null, "");
    addPoint(traces.get(name), runs[run].started_at, trend.figures[index], texts[index]);
  });
  return [...traces.values()].map((trace) => ({ ...trace, showlegend: traces.size <= MOST_NAMED }));
}

function seriesName({ device, device_uuid: uuid, tool_version: version }) {
  return `${uuid === null ? device : uuid.replace("GPU-", "").slice(0, 8)}, dsmla-bench ${(version ?? "unknown").slice(0, 12)}`;
}

function emptyTrace(name, number) {
  const color = COLOURS[number % COLOURS.length];
  return {
    name: escaped(name), type: "scatter", mode: "lines+markers", hoverinfo: "text", x: [], y: [], hovertext: [],
    line: { width: 1, color }, marker: { size: 5, color, symbol: SYMBOLS[number % SYMBOLS.length] },
  };
}

function addPoint(trace, x, y, text) {
  trace.x.push(x);
  trace.y.push(y);
  trace.hovertext.push(text);
}

function hoverTexts(trend, runs, metric) {
  return trend.runs.map((number, index) => {
    const run = runs[number];
    const interval = trend.lower ? ` (${significant(trend.lower[index])} to ${significant(trend.upper[index])})` : "";
    const lines = [
      figureText(trend.figures[index], metric) + interval,
      `commit ${commitText(run.commit)}`,
      `${run.started_at.slice(0, 16).replace("T", " ")} UTC, run ${run.run_id}`,
      `${run.device}, driver ${run.driver ?? "unknown"}`,
      ...(trend.kernels[index] === null ? [] : [`kernel ${trend.kernels[index]}`]),
    ];
    return lines.map((line) => escaped(shortened(line))).join("<br>");
  });
}

function changeTraces(trend, runs, metric) {
  return Object.entries(VERDICTS).flatMap(([verdict, { symbol, color }]) => {
    const found = trend.changes.filter((change) => change.verdict === verdict);
    if (!found.length) return [];
    return [{
      name: `change: ${verdict}`, type: "scatter", mode: "markers", hoverinfo: "text",
      x: found.map(({ bad }) => runs[trend.runs[bad]].started_at),
      y: found.map(({ bad }) => trend.figures[bad]),
      hovertext: found.map((change) => escaped(changeNote(change, trend, runs, metric))),
      marker: { symbol, color, size: 13, line: { width: 1, color: "#ffffff" } },
    }];
  });
}

function layoutOf(trend, runs, metric) {
  const direction = metric.better === "lower" || metric.better === "higher" ? `${metric.better} is better` : metric.better;
  const unit = metric.points ? "share of 1" : metric.unit;
  const lines = trend.segments.filter(({ compared }) => !compared).map(({ start }) => ({
    type: "line", xref: "x", yref: "paper", y0: 0, y1: 1, line: { color: "#9a9a9a", width: 1, dash: "dot" },
    x0: runs[trend.runs[start]].started_at, x1: runs[trend.runs[start]].started_at,
  }));
  return {
    margin: { l: 70, r: 20, t: 30, b: 40 }, hovermode: "closest", hoverlabel: { align: "left" }, dragmode: "zoom", shapes: lines,
    font: { family: 'system-ui, "DejaVu Sans", sans-serif', size: 13 },
    xaxis: { type: "date", automargin: true },
    yaxis: { title: { text: `${metric.label}${unit && `, ${unit}`}<br>${direction}` }, automargin: true },
    legend: { orientation: "h", y: -0.12, yanchor: "top" },
  };
}

function changeNote(change, trend, runs, metric) {
  const [good, bad] = [runs[trend.runs[change.good]], runs[trend.runs[change.bad]]];
  const levels = `${figureText(change.before, metric)} → ${figureText(change.after, metric)}`;
  return `${dayText(bad)}: ${changeText(change, metric)}, ${change.verdict} (${levels}); ${causeText(change, good, bad)}`;
}

function causeText({ kernel }, good, bad) {
  const binary = kernel ? "; the kernel's machine code changed with it" : "";
  if (good.commit === null || bad.commit === null) return `between the runs ${good.run_id} and ${bad.run_id}${binary}`;
  if (good.commit === bad.commit) return `both runs are of commit ${commitText(bad.commit)}, so no commit caused it${binary}`;
  return `bisect: good ${commitText(good.commit)}, bad ${commitText(bad.commit)}${binary}`;
}

function notesOf(trend, runs, metric) {
  const changes = trend.changes.map((change) => [
    change.bad, element("li", changeNote(change, trend, runs, metric), change.is_news ? change.verdict : ""),
  ]);
  const segments = trend.segments.map(({ start, reasons, compared }) => {
    const ending = compared ? "" : "; not compared with figures before";
    return [start, element("li", `${dayText(runs[trend.runs[start]])}: new ${reasons.join(", ")}${ending}`)];
  });
  return [...changes, ...segments].sort(([one], [other]) => other - one).map(([, note]) => note);
}
