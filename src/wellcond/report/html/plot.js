"use strict";

/*
Plots as SVG: lines, marks and stacked bars over layers or over numbers. Colors are CSS variables of the page, so that
another theme needs no redrawing. A plot is drawn at the width of its place, also when that is unfolded, and shows the
numbers below the pointer. Text is set as text: nothing of the user's is read as HTML.
*/

const figures = JSON.parse(document.getElementById("figures").textContent);
const HEIGHT = 320, TOP = 10, RIGHT = 14, LETTER = 6.6, MOST_BOTTOM = 120;

function svg(parent, tag, attributes = {}, text = "") {
  const made = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function html(parent, tag, name = "", text = "") {
  const made = parent.appendChild(document.createElement(tag));
  made.className = name;
  made.textContent = text;
  return made;
}

/** A number to three digits. */
function short(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

/** About five round numbers from low to high. */
function rounded(low, high) {
  const raw = (high - low) / 5 || 1;
  const decade = 10 ** Math.floor(Math.log10(raw));
  const step = decade * [1, 2, 5, 10].find((each) => each * decade >= raw);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

/** Where heights are on a scale from 0 to 1, and its ticks. */
function vertical({ data, layout: { yaxis, barmode } }) {
  const isLog = yaxis.type === "log";
  const heights = data.flatMap((trace) => trace.y).filter((y) => y !== null && (!isLog || y > 0));
  let [low, high] = yaxis.range || [Math.min(...heights), Math.max(...heights)].map(isLog ? Math.log10 : Number);
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (!yaxis.range && !isLog) low = Math.min(low, yaxis.rangemode === "tozero" || barmode ? 0 : low);
  if (high === low) high = low + 1;
  const at = (y) => ((isLog ? Math.log10(y) : y) - low) / (high - low);
  if (yaxis.tickvals) return { at, ticks: yaxis.tickvals.map((y, i) => [at(y), yaxis.ticktext[i]]) };
  const values = rounded(low, high).map((y) => (isLog ? 10 ** y : y));
  return { at, ticks: values.map((y) => [at(y), short(y)]) };
}

/** The same for places from left to right; `names` are those of the places that are counted. */
function horizontal({ data, layout: { xaxis } }) {
  if (xaxis.type === "category") {
    const names = xaxis.categoryarray;
    const order = new Map(names.map((name, i) => [name, i]));
    const at = (name) => (order.get(name) + 0.5) / names.length;
    return { at, names, ticks: xaxis.tickvals.map((i, k) => [at(names[i]), xaxis.ticktext[k]]) };
  }
  const places = data.flatMap((trace) => trace.x);
  const low = Math.min(...places), high = Math.max(...places);
  const at = (x) => (x - low) / (high - low || 1);
  const ticks = places.length ? rounded(low, high).map((x) => [at(x), short(x)]) : [];
  return { at, names: [...new Set(places)].sort((a, b) => a - b), ticks };
}

function draw(host, figure) {
  const width = host.clientWidth;
  if (!width) return; // folded away
  host.replaceChildren();
  const { data, layout } = figure;
  if (layout.showlegend) {
    const legend = html(host, "div", "legend");
    for (const trace of data.filter((each) => each.showlegend !== false)) {
      html(legend, "i").style.background = `var(--${(trace.line || trace.marker).color})`;
      html(legend, "span", "", trace.name);
    }
  }
  const across = horizontal(figure), up = vertical(figure);
  const longest = (ticks) => Math.max(0, ...ticks.map(([, text]) => text.length)) * LETTER;
  const left = 26 + longest(up.ticks);
  const spacing = (width - left - RIGHT) / Math.max(across.ticks.length, 1);
  const isTurned = longest(across.ticks) + 8 > spacing;
  const bottom = isTurned ? Math.min(34 + longest(across.ticks) * 0.75, MOST_BOTTOM) : 42;
  const x = (place) => left + across.at(place) * (width - left - RIGHT);
  const y = (height) => HEIGHT - bottom - up.at(height) * (HEIGHT - bottom - TOP);
  const picture = svg(host, "svg", { width, height: HEIGHT, role: "img", "aria-label": layout.yaxis.title.text });
  for (const [share, text] of up.ticks) {
    const height = HEIGHT - bottom - share * (HEIGHT - bottom - TOP);
    svg(picture, "line", { class: "grid", x1: left, x2: width - RIGHT, y1: height, y2: height });
    svg(picture, "text", { x: left - 6, y: height + 4, "text-anchor": "end" }, text);
  }
  for (const [share, text] of across.ticks) {
    const place = left + share * (width - left - RIGHT), below = HEIGHT - bottom + 16;
    const turn = isTurned ? { "text-anchor": "end", transform: `rotate(-40 ${place} ${below})` } : { "text-anchor": "middle" };
    svg(picture, "text", { x: place, y: below, ...turn }, text);
  }
  svg(picture, "text", { x: (left + width) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, layout.xaxis.title.text);
  const middle = (HEIGHT - bottom + TOP) / 2;
  svg(picture, "text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, layout.yaxis.title.text);
  for (const { text } of layout.annotations || []) svg(picture, "text", { x: (left + width) / 2, y: middle, "text-anchor": "middle" }, text);
  const stacked = new Map();
  const barWidth = Math.min((0.75 * (width - left - RIGHT)) / Math.max(across.names.length, 1), 60);
  for (const trace of data) {
    const color = `var(--${(trace.line || trace.marker).color})`;
    if (trace.type === "bar") {
      trace.x.forEach((name, i) => {
        const begin = stacked.get(name) || 0, end = begin + trace.y[i];
        stacked.set(name, end);
        svg(picture, "rect", { x: x(name) - barWidth / 2, y: y(end), width: barWidth, height: y(begin) - y(end) }).style.fill = color;
      });
      continue;
    }
    if (trace.mode.includes("lines")) {
      const path = trace.x.map((place, i) => (trace.y[i] === null ? "" : `${i && trace.y[i - 1] !== null ? "L" : "M"}${x(place).toFixed(1)} ${y(trace.y[i]).toFixed(1)}`));
      svg(picture, "path", { class: "curve", d: path.join("") }).style.stroke = color;
    }
    const isAlone = (i) => (trace.y[i - 1] ?? null) === null && (trace.y[i + 1] ?? null) === null; // no line shows it
    trace.x.forEach((place, i) => {
      if (trace.y[i] === null || !(trace.mode.includes("markers") || isAlone(i))) return;
      const symbol = (trace.marker?.symbol || [])[i], [px, py] = [x(place), y(trace.y[i])];
      const sign = symbol === "triangle-down" ? -1 : 1;
      const mark = symbol
        ? svg(picture, "path", { d: `M${px - 5} ${py + 4 * sign}L${px + 5} ${py + 4 * sign}L${px} ${py - 5 * sign}Z` })
        : svg(picture, "circle", { cx: px, cy: py, r: 3 });
      mark.style.fill = color;
    });
  }
  if (across.names.length) point(host, picture, figure, across.names, x, HEIGHT - bottom);
}

/** The numbers at the place below the pointer. */
function point(host, picture, { data }, names, x, floor) {
  const line = svg(picture, "line", { class: "pointer", y1: TOP, y2: floor, visibility: "hidden" });
  const tip = html(host, "div", "tip");
  tip.hidden = true;
  picture.addEventListener("pointermove", (event) => {
    const at = event.clientX - picture.getBoundingClientRect().left;
    const name = names.reduce((best, each) => (Math.abs(x(each) - at) < Math.abs(x(best) - at) ? each : best));
    tip.replaceChildren();
    html(tip, "strong", "", typeof name === "string" || Number.isInteger(name) ? name : short(name));
    const isIn = new Set(); // a value that is off the scale is a mark of its line
    for (const trace of data) {
      const i = trace.x.indexOf(name);
      if (i < 0 || trace.y[i] === null || isIn.has(trace.name)) continue;
      isIn.add(trace.name);
      html(tip, "span", "", [trace.name, trace.customdata ? trace.customdata[i] : short(trace.y[i])].filter(Boolean).join(": "));
    }
    for (const [end, value] of [["x1", x(name)], ["x2", x(name)]]) line.setAttribute(end, value);
    line.setAttribute("visibility", "visible");
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(x(name) + 10, host.clientWidth - tip.offsetWidth))}px`;
  });
  picture.addEventListener("pointerleave", () => {
    tip.hidden = true;
    line.setAttribute("visibility", "hidden");
  });
}

const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  if (target.dataset.width === String(target.clientWidth)) return;
  target.dataset.width = target.clientWidth;
  draw(target, figures[target.id]);
}));
Object.keys(figures).forEach((id) => widths.observe(document.getElementById(id)));
