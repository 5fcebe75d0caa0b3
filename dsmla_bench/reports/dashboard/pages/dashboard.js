// The page of `dsmla-bench dashboard`: filters, the table of latest figures and the chart of one row.
//
// All it shows is in dashboard-data/*.js, which call dashboard.receive(name, data): scripts instead of requests, because
// a page opened as a file may load those and nothing else. A row's figures are loaded when it is shown.
"use strict";

const MOST_ROWS = 500;
const STATES = ["news", "worse", "better", "unusual", "not ok"];

const dashboard = {
  received: new Map(),
  loading: new Map(),
  catalogue: null,
  selected: null,
  receive(name, data) {
    this.received.set(name, data);
    if (name === "catalogue") start(data);
  },
};

function start(catalogue) {
  dashboard.catalogue = catalogue;
  document.getElementById("summary").textContent = catalogue.summary;
  if (!catalogue.rows.length) return;
  addFilters(catalogue);
  showLatest();
}

// Loading

function loadScript(path) {
  if (!dashboard.loading.has(path)) {
    dashboard.loading.set(path, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = path;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${path} cannot be loaded`));
      document.head.append(script);
    }));
  }
  return dashboard.loading.get(path);
}

async function loadFigures(row) {
  await Promise.all([loadScript(`dashboard-data/${row.file}.js`), loadScript("plotly.min.js")]);
  return dashboard.received.get(row.file);
}

// Filters

function addFilters({ tables, filters, rows }) {
  addFilter("figure", "Figure", Object.entries(tables).flatMap(([table, { title, metrics }]) =>
    Object.entries(metrics).map(([column, { label, unit }]) =>
      [`${table} ${column}`, `${title}: ${label}${unit && `, ${unit}`}`])));
  for (const [axis, label] of Object.entries(filters)) {
    const values = [...new Set(rows.map((row) => row[axis]).filter((value) => value !== null))].sort();
    addFilter(axis, label, [["", "all"], ...values.map((value) => [value, value])]);
  }
  addFilter("state", "State", [["", "all"], ...STATES.map((state) => [state, state])]);
  document.getElementById("filters").addEventListener("change", showLatest);
}

function addFilter(name, label, values) {
  const select = holding("select", values.map(([value, text]) => Object.assign(element("option", text), { value })));
  select.name = name;
  document.getElementById("filters").append(holding("label", [label, select]));
}

function chosen(name) {
  return document.querySelector(`#filters select[name="${name}"]`).value;
}

function chosenFigure() {
  const [table, column] = chosen("figure").split(" ");
  const { runs, metrics } = dashboard.catalogue.tables[table];
  return { table, column, runs, metric: metrics[column] };
}

function matches(row, { table, column }) {
  if (row.table !== table || !(column in row.latest)) return false;
  const axes = Object.keys(dashboard.catalogue.filters);
  return axes.every((axis) => ["", row[axis]].includes(chosen(axis))) && ["", ...states(row, column)].includes(chosen("state"));
}

function states(row, column) {
  const { change, unusual } = row.latest[column];
  return [
    ...(change ? [change.verdict] : []),
    ...(change?.is_news ? ["news"] : []),
    ...(unusual ? ["unusual"] : []),
    ...(row.is_ok ? [] : ["not ok"]),
  ];
}

// The table of latest figures

function showLatest() {
  const shown = chosenFigure();
  const rows = dashboard.catalogue.rows.filter((row) => matches(row, shown));
  rows.sort((one, other) => needsCare(other, shown) - needsCare(one, shown));
  const left = rows.length > MOST_ROWS ? `; the first ${MOST_ROWS} are listed, narrow the filters to see others` : "";
  document.getElementById("count").textContent = `${rows.length} of ${dashboard.catalogue.rows.length} rows${left}`;
  document.getElementById("rows").replaceChildren(...rows.slice(0, MOST_ROWS).map((row) => lineOf(row, shown)));
  select(rows.includes(dashboard.selected) ? dashboard.selected : rows[0] ?? null);
}

function needsCare(row, { column }) {
  const found = states(row, column);
  return found.includes("not ok") || (found.includes("news") && found.includes("worse"));
}

function lineOf(row, shown) {
  const button = Object.assign(element("button", row.title), { type: "button" });
  button.addEventListener("click", () => {
    select(row);
    document.getElementById("trend-title").scrollIntoView();
  });
  const line = holding("tr", [
    holding("td", [button, element("small", row.shape)]),
    holding("td", [row.device, element("small", row.arch ?? "")]),
    holding("td", latestOf(row, shown)),
    holding("td", changeOf(row, shown)),
  ]);
  line.dataset.file = row.file;
  return line;
}

function latestOf(row, { column, runs, metric }) {
  if (!row.is_ok) return [element("span", row.status, "worse"), element("small", row.reason ?? "")];
  const { value, run } = row.latest[column];
  return [figureText(value, metric), element("small", dayText(runs[run]))];
}

function changeOf(row, { column, runs, metric }) {
  const { change, unusual } = row.latest[column];
  const warning = unusual ? [element("small", "newest figure unusual: measure again")] : [];
  if (!change) return unusual ? warning : ["–"];
  const run = runs[change.run];
  const text = element("span", `${changeText(change, metric)} ${change.verdict}`, change.is_news ? change.verdict : "");
  return [text, element("small", `since ${dayText(run)}, commit ${commitText(run.commit)}`), ...warning];
}

// The trend of one row

async function select(row) {
  dashboard.selected = row;
  const shown = chosenFigure();
  for (const line of document.querySelectorAll("#rows tr")) line.ariaCurrent = String(line.dataset.file === row?.file);
  document.getElementById("trend-title").textContent = row?.title ?? "Trend";
  document.getElementById("trend-about").textContent =
    row ? [row.shape, row.device, row.arch].filter(Boolean).join(" · ") : "No row matches the filters.";
  document.getElementById("trend").hidden = row === null;
  if (row === null) return;
  const trend = (await loadFigures(row))[shown.column];
  if (dashboard.selected !== row || chosenFigure().metric !== shown.metric) return;
  drawChart(trend, shown.runs, shown.metric);
  document.getElementById("notes").replaceChildren(...notesOf(trend, shown.runs, shown.metric));
}
