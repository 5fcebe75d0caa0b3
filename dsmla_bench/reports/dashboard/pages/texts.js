// How figures, changes and commits are written, and elements that hold them. Texts of runs are never read as markup:
// elements get textContent only, and plotly, which knows some HTML tags, gets `escaped` texts.
"use strict";

// Three significant digits without an exponent, as the tables of `report` have them.
function significant(value) {
  if (value === null) return "–";
  const exponent = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3)))));
  return Number(value.toPrecision(3)).toFixed(Math.min(100, Math.max(0, 2 - exponent)));
}

function figureText(value, metric) {
  if (value !== null && metric.points) return `${significant(100 * value)} %`;
  return `${significant(value)} ${metric.unit}`.trim();
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
}

function changeText({ before, after }, metric) {
  if (metric.points) return `${signed(100 * (after - before))} pt`;
  if (before === 0) return `${significant(before)} → ${significant(after)}`;
  return `${signed((100 * (after - before)) / Math.abs(before))} %`;
}

function dayText(run) {
  return run.started_at.slice(0, 10);
}

function commitText(commit) {
  return commit === null ? "unknown" : commit.slice(0, 12);
}

function shortened(text) {
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}

function escaped(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

function holding(tag, children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}
