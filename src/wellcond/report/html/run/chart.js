"use strict";

/*
Line charts and heat maps over training steps, on canvas.

One figure per layer, two thousand of them, would hold the browser up as SVG, which the pages of a diagnosis use. Two
kinds of charts are needed here; they draw themselves when they come into view and share one range of steps, so that all
of them show the same part of a run.

A chart is drawn from its data alone, at the size of its host and the resolution of the screen. Colors are CSS variables
of the page. It can be read by pointer, touch and keyboard (arrows), and says the same to a screen reader.
*/

const STYLE_HOST = document.querySelector("main");
const byId = (id) => document.getElementById(id);
const swatch = STYLE_HOST.appendChild(document.createElement("i")); // has the color that a variable stands for
swatch.hidden = true;
const tone = (name) => {
  swatch.style.color = `var(--${name}, ${name})`;
  return getComputedStyle(swatch).color;
};
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const LOG_FROM = 30; // positive values that span more than this factor get a logarithmic axis
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children); // strings become text: nothing of the user's is read as HTML
  return made;
}

/** A number to three digits, as the rest of the page writes it, or to more. */
function number(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "not finite";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

/** The numbers of an axis, to the fewest digits that show them apart. */
function labels(ticks) {
  for (let digits = 3; digits < 9; digits++) {
    const texts = ticks.map((tick) => number(tick, digits));
    if (new Set(texts).size === texts.length) return texts;
  }
  return ticks.map((tick) => number(tick));
}

/** A layer's name, after the word "layer" if it is only a number, as in a `Sequential`. */
const named = (layer) => (/^\d+$/.test(layer) ? `layer ${layer}` : layer);
const wholeNumber = (value) => Math.round(value).toLocaleString("en-US");

/** About `count` round numbers between two ends. */
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? 10 * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(i * step);
  return ticks;
}

/** Powers of ten between two ends; with 2 and 5 between them where there are few. */
function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const stride = Math.max(1, Math.ceil((last - first) / Math.max(count, 1)));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += stride) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((each) => each >= low * 0.999 && each <= high * 1.001);
}

/** The last place in an ascending array whose entry is not above a value; -1 if all are. */
function placeOf(ascending, value) {
  let [low, high] = [0, ascending.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The range of steps that all charts show. */
const view = {
  full: [0, 1],
  range: null,
  listeners: new Set(),
  get steps() { return this.range ?? this.full; },
  show(range) {
    this.range = range;
    for (const listener of this.listeners) listener();
  },
};

class Chart {
  /**
   * @param host    Element that gets the canvas; its width is the chart's.
   * @param height  In pixels.
   * @param label   What a screen reader says of it.
   */
  constructor(host, { height, label }) {
    this.host = host;
    this.height = height;
    this.cursor = null;
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.readout = element("div", { class: "readout", "aria-live": "polite", hidden: true });
    host.classList.add("chart");
    host.style.height = `${height}px`;
    host.append(this.canvas, this.readout);
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    this.canvas.addEventListener("pointerup", (event) => this.onUp(event));
    this.canvas.addEventListener("pointerleave", () => this.setCursor(null));
    this.canvas.addEventListener("pointercancel", () => { this.dragFrom = null; this.setCursor(null); });
    this.canvas.addEventListener("dblclick", () => view.show(null));
    this.canvas.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.onKey(event.key)) event.preventDefault();
    });
    this.canvas.addEventListener("blur", () => this.setCursor(null));
    this.onView = () => this.redraw();
    Chart.visible.observe(host);
    Chart.resized.observe(host);
    Chart.of.set(host, this);
    view.listeners.add(this.onView);
  }

  remove() {
    Chart.visible.unobserve(this.host);
    Chart.resized.unobserve(this.host);
    view.listeners.delete(this.onView);
    this.host.remove();
  }

  /** Draw at the next frame, if it has been in view. */
  redraw() {
    if (!this.isSeen || this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.width = this.host.clientWidth;
      if (!this.width) return;
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.context = this.canvas.getContext("2d");
      this.context.scale(ratio, ratio);
      this.context.font = FONT;
      this.draw();
      this.canvas.dataset.drawn = "yes";
    });
  }

  get plot() {
    const { left, right, top, bottom } = this.margins();
    return { left, top, right: this.width - right, bottom: this.height - bottom };
  }

  x(step) {
    const [from, to] = view.steps;
    const { left, right } = this.plot;
    return left + ((step - from) / (to - from || 1)) * (right - left);
  }

  stepAt(x) {
    const [from, to] = view.steps;
    const { left, right } = this.plot;
    return from + (clamp((x - left) / (right - left || 1), 0, 1)) * (to - from);
  }

  drawSteps() {
    const { context, plot } = this;
    const [from, to] = view.steps;
    context.fillStyle = tone("muted");
    context.textBaseline = "top";
    let free = 0;
    for (const step of linearTicks(from, to, (plot.right - plot.left) / 90)) {
      if (step !== Math.round(step)) continue;
      const text = free ? wholeNumber(step) : `step ${wholeNumber(step)}`;
      const width = context.measureText(text).width;
      const start = clamp(this.x(step) - width / 2, plot.left, this.width - width);
      if (start < free) continue;
      context.fillText(text, start, plot.bottom + 7);
      free = start + width + 10;
    }
  }

  setCursor(cursor, at = null) {
    this.cursor = cursor;
    const lines = cursor === null ? [] : this.cursorLines();
    this.readout.hidden = lines.length === 0;
    if (lines.length) {
      this.readout.replaceChildren(...lines.map((line) => element("div", {}, ...line)));
      const { x, y } = at ?? this.cursorPlace();
      const size = this.readout.getBoundingClientRect();
      const left = x + 14 + size.width > this.width ? x - 14 - size.width : x + 14;
      this.readout.style.left = `${clamp(left, 0, Math.max(this.width - size.width, 0))}px`;
      this.readout.style.top = `${clamp(y - size.height / 2, 0, Math.max(this.height - size.height, 0))}px`;
    }
    this.redraw();
  }

  placeIn(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  onMove(event) {
    const at = this.placeIn(event);
    this.dragTo = at.x;
    this.setCursor(this.cursorAt(at), at);
  }

  onDown(event) {
    this.downAt = this.placeIn(event);
    if (event.pointerType === "mouse" && event.button === 0) {
      this.dragFrom = this.dragTo = this.downAt.x;
      this.canvas.setPointerCapture(event.pointerId);
    } else {
      this.onMove(event);
    }
  }

  onUp(event) {
    const [start, end] = [this.dragFrom ?? null, this.placeIn(event).x];
    this.dragFrom = null;
    if (start !== null && Math.abs(end - start) > 6) {
      const range = [this.stepAt(Math.min(start, end)), this.stepAt(Math.max(start, end))];
      if (range[1] - range[0] >= 1) view.show(range);
    } else if (this.downAt && Math.hypot(this.downAt.x - this.placeIn(event).x, this.downAt.y - this.placeIn(event).y) < 6) {
      this.onPick?.(this.cursorAt(this.placeIn(event)));
    }
  }

  drawDrag() {
    if (this.dragFrom === null || this.dragFrom === undefined) return;
    const { context, plot } = this;
    context.globalAlpha = 0.15;
    context.fillStyle = tone("ink");
    context.fillRect(this.dragFrom, plot.top, this.dragTo - this.dragFrom, plot.bottom - plot.top);
    context.globalAlpha = 1;
  }
}

Chart.of = new WeakMap();
Chart.visible = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    const chart = Chart.of.get(entry.target);
    chart.isSeen = true;
    chart.redraw();
  }
}, { rootMargin: "200px" });
Chart.resized = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = Chart.of.get(entry.target);
    if (chart.width !== entry.target.clientWidth) chart.redraw();
  }
});

/** Call a function once, when an element is about to be seen. */
function whenNear(host, begin) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    begin();
  }, { rootMargin: "400px" });
  observer.observe(host);
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.show(view.range));

// the button that leaves an enlarged part
const resetButton = byId("whole-run");
view.listeners.add(() => {
  resetButton.hidden = view.range === null;
  if (view.range) resetButton.textContent = `steps ${view.range.map(wholeNumber).join(" to ")} · show all`;
});
resetButton.addEventListener("click", () => view.show(null));
