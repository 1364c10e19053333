// Charts: drawn at the width there is, so that type keeps its size on a phone; hover, touch and arrow keys tell values.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const palette = JSON.parse(document.getElementById("palette").textContent);

function make(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function colour(index) { return `var(--c${index})`; }

function styleOf(label, place, plain = false) {
  const known = palette.systems.indexOf(label);
  const index = plain ? place : known >= 0 ? known : palette.systems.length + place;
  const colours = palette.colours;
  return { ink: colour(index % colours), dash: palette.dashes[Math.floor(index / colours) % palette.dashes.length] };
}

function signed(value, digits = 1) { return value.toFixed(digits).replace("-", "−"); }

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(at);
  return { at: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function textWidth(text) { return 7.3 * text.length; } // of bold type, on the safe side

// Tooltips

function tooltip(plot) {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  plot.append(tip);
  return {
    show(lines, x, y) {
      tip.replaceChildren(...lines.map(({ text, value, ink }) => {
        const line = document.createElement("div");
        if (ink) line.append(Object.assign(document.createElement("i"), { style: `background:${ink}` }));
        if (value !== undefined) line.append(Object.assign(document.createElement("b"), { textContent: value }));
        line.append(text);
        return line;
      }));
      tip.hidden = false;
      const space = plot.clientWidth - tip.offsetWidth;
      const left = x + 14 > space ? x - tip.offsetWidth - 14 : x + 14;
      tip.style.left = `${Math.max(0, Math.min(left, Math.max(0, space)))}px`;
      tip.style.top = `${Math.max(0, y - tip.offsetHeight / 2)}px`;
    },
    hide() { tip.hidden = true; },
  };
}

function listen(svg, count, show, hide, nearest) {
  let at = -1;
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const found = nearest(event.clientX - box.left, event.clientY - box.top);
    if (found === null) { hide(); return; }
    show((at = found));
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((at = Math.max(0, Math.min(count - 1, at + step))));
  });
}

// Lines

function spreadLabels(labels, height) {
  labels.sort((a, b) => a.y - b.y);
  for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + 13);
  const over = labels.length ? labels.at(-1).y - height : 0;
  if (over > 0) labels.at(-1).y -= over;
  for (let i = labels.length - 2; i >= 0; i--) labels[i].y = Math.min(labels[i].y, labels[i + 1].y - 13);
}

function drawLegend(plot, lines) {
  const legend = document.createElement("div");
  legend.className = "legend";
  for (const line of lines) {
    const item = document.createElement("span");
    const key = make("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    make("line", { x1: 0, x2: 26, y1: 5, y2: 5, style: `stroke:${line.ink}`, "stroke-width": 2, "stroke-dasharray": line.dash }, key);
    item.append(key, line.label);
    legend.append(item);
  }
  plot.append(legend);
}

function drawLines(plot, svg, chart, width) {
  const lines = chart.series.map((series, place) => ({ ...series, ...styleOf(series.label, place, chart.plain) }));
  const longest = Math.max(...lines.map((line) => textWidth(line.label)));
  const direct = chart.direct !== false && lines.length <= 8 && longest < width * 0.34;
  const margin = { left: 40, right: direct ? longest + 14 : 12, top: 22, bottom: 36 };
  const height = Math.round(Math.max(220, Math.min(320, width * 0.55)));
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const values = lines.flatMap((line) => line.y.flatMap((y, i) => (line.std ? [y - line.std[i], y + line.std[i]] : [y])));
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (chart.zero) low = Math.min(low, 0);
  const pad = (high - low || 10) * 0.06;
  if (low !== 0) low -= pad;
  high += pad;
  const inner = { w: width - margin.left - margin.right, h: height - margin.top - margin.bottom };
  const px = (x) => margin.left + ((x - xs[0]) / (xs.at(-1) - xs[0] || 1)) * inner.w;
  const py = (y) => margin.top + (1 - (y - low) / (high - low)) * inner.h;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  make("text", { x: 0, y: 10 }, svg, chart.y);
  make("text", { x: margin.left + inner.w, y: height - 4, "text-anchor": "end" }, svg, chart.x);
  const vertical = ticks(low, high, 5);
  for (const at of vertical.at) {
    const zero = Math.abs(at) < 1e-9 && low < 0;
    make("line", { class: zero ? "zero" : "grid", x1: margin.left, x2: margin.left + inner.w, y1: py(at), y2: py(at) }, svg);
    make("text", { x: margin.left - 7, y: py(at) + 4, "text-anchor": "end" }, svg, signed(at, vertical.digits));
  }
  const every = Math.max(1, Math.ceil(xs.length / Math.max(2, Math.floor(inner.w / 34))));
  xs.forEach((x, i) => {
    if (i % every === 0) make("text", { x: px(x), y: margin.top + inner.h + 16, "text-anchor": "middle" }, svg, x);
  });
  for (const line of lines) {
    line.group = make("g", {}, svg);
    if (line.std) {
      const above = line.x.map((x, i) => `${px(x)},${py(line.y[i] + line.std[i])}`);
      const below = line.x.map((x, i) => `${px(x)},${py(line.y[i] - line.std[i])}`).reverse();
      make("polygon", { points: [...above, ...below].join(" "), style: `fill:${line.ink}`, opacity: 0.13 }, line.group);
    }
    const points = line.x.map((x, i) => `${px(x)},${py(line.y[i])}`).join(" ");
    make("polyline", { points, fill: "none", style: `stroke:${line.ink}`, "stroke-width": 2, "stroke-dasharray": line.dash, "stroke-linejoin": "round" }, line.group);
    if (line.x.length <= 30) line.x.forEach((x, i) => make("circle", { cx: px(x), cy: py(line.y[i]), r: 2.6, style: `fill:${line.ink}` }, line.group));
  }
  if (direct) {
    const labels = lines.map((line) => ({ line, y: py(line.y.at(-1)) }));
    spreadLabels(labels, margin.top + inner.h);
    for (const { line, y } of labels) {
      const label = make("text", { x: margin.left + inner.w + 9, y: y + 4, style: `fill:${line.ink};font-weight:600` }, svg, line.label);
      label.addEventListener("pointerenter", () => lines.forEach((l) => l.group.classList.toggle("faded", l !== line)));
      label.addEventListener("pointerleave", () => lines.forEach((l) => l.group.classList.remove("faded")));
    }
  } else if (lines.length > 1 || chart.direct !== false) drawLegend(plot, lines);
  const cross = make("line", { class: "cross", y1: margin.top, y2: margin.top + inner.h, visibility: "hidden" }, svg);
  const tip = tooltip(plot);
  const hide = () => { cross.setAttribute("visibility", "hidden"); tip.hide(); };
  const show = (index) => {
    const x = xs[index];
    cross.setAttribute("x1", px(x)); cross.setAttribute("x2", px(x)); cross.setAttribute("visibility", "visible");
    const told = lines.map((line) => ({ line, i: line.x.indexOf(x) })).filter(({ i }) => i >= 0)
      .sort((a, b) => b.line.y[b.i] - a.line.y[a.i])
      .map(({ line, i }) => ({ text: line.label, ink: line.ink, value: signed(line.y[i], chart.digits ?? 1) + (line.std ? ` ± ${line.std[i].toFixed(1)}` : "") }));
    tip.show([{ text: `${chart.x}: ${x}` }, ...told], px(x), margin.top + inner.h / 2);
  };
  listen(svg, xs.length, show, hide, (x) => {
    const distances = xs.map((value) => Math.abs(px(value) - x));
    return distances.indexOf(Math.min(...distances));
  });
}
