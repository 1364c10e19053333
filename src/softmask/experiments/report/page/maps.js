// Dot charts and heat maps, and what decides which chart is drawn where and when.
"use strict";

function drawDots(plot, svg, chart, width) {
  const dots = chart.dots.map(([label, value, std, paper, difference, seeds], place) => ({ label, value, std, paper, difference, seeds, ...styleOf(label, place) }));
  const step = 26;
  const left = Math.min(Math.max(...dots.map((dot) => textWidth(dot.label))) + 14, width * 0.42);
  const margin = { left, right: 16, top: 6, bottom: 38 };
  const height = margin.top + margin.bottom + step * dots.length;
  const values = dots.flatMap((d) => [d.value - (d.std || 0), d.value + (d.std || 0), ...(d.paper === null ? [] : [d.paper])]).concat(chart.chance === null ? [] : [chart.chance]);
  const [low, high] = [Math.max(0, Math.min(...values) - 4), Math.min(100, Math.max(...values) + 4)];
  const px = (x) => margin.left + ((x - low) / (high - low || 1)) * (width - margin.left - margin.right);
  const py = (i) => margin.top + step * (i + 0.5);
  const bottom = height - margin.bottom;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const across = ticks(low, high, Math.max(3, Math.floor(width / 110)));
  for (const at of across.at) {
    make("line", { class: "grid", x1: px(at), x2: px(at), y1: margin.top, y2: bottom }, svg);
    make("text", { x: px(at), y: bottom + 15, "text-anchor": "middle" }, svg, at.toFixed(across.digits));
  }
  if (chart.chance !== null) make("line", { class: "chance", x1: px(chart.chance), x2: px(chart.chance), y1: margin.top, y2: bottom }, svg);
  const told = chart.x + (dots.some((dot) => dot.paper !== null) ? "; hollow: the paper" : "") + (chart.chance === null ? "" : "; dotted: chance");
  make("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, svg, told);
  dots.forEach((dot, i) => {
    const name = make("text", { x: margin.left - 10, y: py(i) + 4, "text-anchor": "end", style: `fill:${dot.ink};font-weight:600` }, svg, dot.label);
    if (textWidth(dot.label) > left) name.textContent = dot.label.slice(0, Math.floor(left / 7.3) - 2) + "…";
    if (dot.paper !== null) {
      make("line", { x1: px(dot.paper), x2: px(dot.value), y1: py(i), y2: py(i), style: `stroke:${dot.ink}`, opacity: 0.4, "stroke-width": 2 }, svg);
      make("circle", { cx: px(dot.paper), cy: py(i), r: 4.5, style: `stroke:${dot.ink};fill:var(--ground)`, "stroke-width": 1.6 }, svg);
    }
    if (dot.std) make("line", { x1: px(dot.value - dot.std), x2: px(dot.value + dot.std), y1: py(i), y2: py(i), style: `stroke:${dot.ink}`, "stroke-width": 4, opacity: 0.35 }, svg);
    make("circle", { cx: px(dot.value), cy: py(i), r: 5, style: `fill:${dot.ink}` }, svg);
  });
  const tip = tooltip(plot);
  const show = (i) => {
    const { label, value, std, paper, difference, seeds, ink } = dots[i];
    const lines = [{ text: label }, { text: "ours", ink, value: signed(value) + (std ? ` ± ${std.toFixed(1)}, n = ${seeds}` : "") }];
    if (paper !== null) lines.push({ text: "paper", value: signed(paper) }, { text: "difference", value: difference.replace("-", "\u2212") });
    tip.show(lines, px(value), py(i));
  };
  listen(svg, dots.length, show, () => tip.hide(), (x, y) => (y > bottom ? null : Math.max(0, Math.min(dots.length - 1, Math.floor((y - margin.top) / step)))));
}

// Cividis, thinned: dark to light in a way that colour-blind readers see too.
const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];

function heat(value) {
  const at = Math.max(0, Math.min(1, value / 100)) * (CIVIDIS.length - 1);
  const i = Math.min(CIVIDIS.length - 2, Math.floor(at));
  return `rgb(${CIVIDIS[i].map((from, k) => Math.round(from + (at - i) * (CIVIDIS[i + 1][k] - from))).join(",")})`;
}

function drawHeat(plot, svg, chart, width) {
  const [rows, columns] = [chart.rows.length, Math.max(...chart.rows.map((row) => row.length))];
  const margin = { left: 34, right: 4, top: 4, bottom: 36 };
  const size = Math.min(40, (width - margin.left - margin.right) / columns);
  const height = margin.top + margin.bottom + size * rows;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const every = Math.max(1, Math.ceil(22 / size));
  const cells = [];
  chart.rows.forEach((row, i) => {
    const y = margin.top + size * i;
    if (i % every === 0) make("text", { x: margin.left - 7, y: y + size / 2 + 4, "text-anchor": "end" }, svg, i + 1);
    row.forEach((value, j) => {
      if (value === null) return;
      const x = margin.left + size * j;
      make("rect", { x, y, width: size - 1, height: size - 1, style: `fill:${heat(value)}` }, svg);
      if (size >= 24) make("text", { x: x + size / 2, y: y + size / 2 + 4, "text-anchor": "middle", style: `font-size:11px;fill:${value > 58 ? "#111" : "#fff"}` }, svg, Math.round(value));
      cells.push({ i, j, value, x: x + size / 2, y: y + size / 2 });
    });
  });
  for (let j = 0; j < columns; j += every) make("text", { x: margin.left + size * (j + 0.5), y: margin.top + size * rows + 15, "text-anchor": "middle" }, svg, j + 1);
  make("text", { x: margin.left, y: height - 4 }, svg, "across: task; down: after task; accuracy in %");
  const tip = tooltip(plot);
  const show = (at) => {
    const { i, j, value, x, y } = cells[at];
    tip.show([{ text: `after task ${i + 1}` }, { text: `task ${j + 1}`, value: `${value.toFixed(1)} %` }], x, y);
  };
  listen(svg, cells.length, show, () => tip.hide(), (x, y) => {
    const [j, i] = [Math.floor((x - margin.left) / size), Math.floor((y - margin.top) / size)];
    const found = cells.findIndex((cell) => cell.i === i && cell.j === j);
    return found < 0 ? null : found;
  });
}

const DRAW = { line: drawLines, dots: drawDots, heat: drawHeat };
const charts = JSON.parse(document.getElementById("charts").textContent);

function drawChart(plot, chart, alt) {
  const width = Math.floor(plot.clientWidth);
  if (!width || !chart) return;
  plot.replaceChildren();
  const svg = make("svg", { role: "img", "aria-label": alt || chart.title, tabindex: 0, width, class: chart.kind }, plot);
  DRAW[chart.kind](plot, svg, chart, width);
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const width = Math.floor(target.clientWidth);
    if (width && width !== Number(target.dataset.width)) {
      target.dataset.width = width;
      drawChart(target, target.chart || charts[target.dataset.chart], target.dataset.alt);
    }
  }
});
document.querySelectorAll(".plot[data-chart]").forEach((plot) => resized.observe(plot));

for (const select of document.querySelectorAll("select[data-charts]")) {
  const shown = () => {
    for (const figure of document.getElementById(select.dataset.charts).children) figure.hidden = figure.dataset.option !== select.value;
  };
  select.addEventListener("change", shown);
  shown();
}
