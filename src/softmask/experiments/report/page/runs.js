// The page of one run, made from its data when its address (#run/ID) is asked for.
"use strict";

const runs = JSON.parse(document.getElementById("runs-data").textContent);
const view = document.getElementById("run");
const all = document.getElementById("all");
let leftAt = 0;

function add(parent, name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

function addChart(parent, chart) {
  const figure = add(parent, "figure");
  add(figure, "figcaption", chart.title);
  const plot = add(figure, "div", undefined, { class: "plot" });
  plot.chart = chart;
  resized.observe(plot);
}

function column(run, index) { return run.epochs.map((epoch) => epoch[index]); }

function curves(run) {
  const made = [];
  const x = run.epochs.map((_, i) => i + 1);
  if (run.epochs.length > 1) {
    const direct = { kind: "line", x: "epochs of all tasks", direct: false, plain: true };
    made.push({ ...direct, title: "Validation accuracy during training", y: "accuracy, %", series: [{ label: "validation", x, y: column(run, 1) }] });
    made.push({ ...direct, title: "Loss during training", y: "loss", digits: 3, series: [{ label: "training", x, y: column(run, 3) }, { label: "validation", x, y: column(run, 2) }] });
  }
  if (run.matrix.length) made.push({ kind: "heat", title: "Accuracy on each task after each task", rows: run.matrix });
  const layers = Object.entries(run.blocked);
  if (layers.length && layers[0][1].length > 1) {
    const series = layers.map(([label, y]) => ({ label, x: y.map((_, i) => i + 1), y }));
    made.push({ kind: "line", title: "Completely blocked parameters by layer", x: "tasks learned", y: "%", digits: 2, zero: true, plain: true, series });
  }
  return made;
}

function showRun(id) {
  const run = runs[id];
  view.replaceChildren();
  const back = add(add(view, "p"), "a", "← all results", { href: "#runs" });
  back.addEventListener("click", () => setTimeout(() => window.scrollTo(0, leftAt)));
  const title = add(view, "h1", run ? run.title : "This run is not in the report");
  title.tabIndex = -1;
  if (run) {
    const about = add(view, "p", run.said, { class: "lead" });
    if (run.status !== "finished") about.classList.add(run.status);
    const grid = add(view, "div", undefined, { class: "charts" });
    curves(run).forEach((chart) => addChart(grid, chart));
    add(view, "h3", "Config");
    const list = add(view, "dl");
    for (const [name, value] of Object.entries(run.config)) { add(list, "dt", name); add(list, "dd", value); }
    if (run.tasks.length) {
      add(view, "h3", "Its tasks");
      const tasks = add(view, "dl");
      run.tasks.forEach((name, i) => { add(tasks, "dt", `task ${i + 1}`); add(tasks, "dd", name); });
    }
    const how = add(add(view, "p", undefined, { class: "how" }), "code", run.command);
    how.title = "The command for this run";
  }
  return title;
}

function route() {
  const id = location.hash.startsWith("#run/") ? decodeURIComponent(location.hash.slice(5)) : null;
  if (id !== null && view.hidden) leftAt = window.scrollY;
  const wasRun = !view.hidden;
  view.hidden = id === null;
  all.hidden = id !== null;
  if (id !== null) {
    showRun(id).focus({ preventScroll: true });
    window.scrollTo(0, 0);
  } else if (wasRun && location.hash) document.querySelector(location.hash)?.scrollIntoView();
}

window.addEventListener("hashchange", route);
route();
