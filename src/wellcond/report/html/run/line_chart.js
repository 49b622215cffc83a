"use strict";

/**
 * Lines over steps. A line: {name, steps, values (null: not finite), color, dash, isHeld (valid until the next point),
 * low, high (a band)}. A span: {from, to, color}, shaded. `marks`: height above the plot that its owner fills.
 */
class LineChart extends Chart {
  constructor(host, { lines, spans = [], height = 260, label, marksHeight = 0, onDrawn = null, hasLog = true }) {
    super(host, { height: height + marksHeight, label });
    Object.assign(this, { lines, spans, marksHeight, onDrawn, left: 34 });
    const all = lines.flatMap((line) => line.values).filter((value) => value !== null);
    const positive = all.filter((value) => value > 0);
    this.canBeLog = hasLog && positive.length > 0 && all.every((value) => value >= 0);
    this.isLog = this.canBeLog && max(positive) > LOG_FROM * min(positive);
    this.steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  }

  margins() { return { left: this.left, right: 10, top: 10 + this.marksHeight, bottom: 26 }; }

  y(value) {
    const { top, bottom } = this.plot;
    const [low, high] = this.range;
    if (this.isLog && value <= 0) return bottom; // zero is below everything
    const share = this.isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return bottom - clamp(share, -0.05, 1.05) * (bottom - top);
  }

  /** The range of what is in view, a little wider. */
  fit() {
    const [from, to] = view.steps;
    const values = [];
    for (const { steps, values: all, low, high } of this.lines) {
      const first = Math.max(placeOf(steps, from), 0);
      const last = placeOf(steps, to);
      for (let i = first; i <= last; i++) {
        for (const value of [all[i], low?.[i], high?.[i]]) {
          if (value !== null && value !== undefined && (!this.isLog || value > 0)) values.push(value);
        }
      }
    }
    let [low, high] = values.length ? [min(values), max(values)] : [0, 1];
    if (this.isLog) {
      const room = Math.max(high / low, 1.2) ** 0.06;
      this.range = [low / room, high * room];
    } else {
      if (low >= 0 && low < 0.5 * high) low = 0;
      const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
      this.range = [low === 0 ? 0 : low - room, high + room];
    }
  }

  draw() {
    this.fit();
    const { context } = this;
    context.clearRect(0, 0, this.width, this.height);
    const ticks = (this.isLog ? logTicks : linearTicks)(...this.range, (this.height - this.marksHeight) / 45);
    const texts = labels(ticks);
    this.left = Math.max(34, 12 + max(texts.map((text) => context.measureText(text).width)));
    const { plot } = this;
    const wide = plot.right - plot.left;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [i, tick] of ticks.entries()) {
      const y = Math.round(this.y(tick)) + 0.5;
      context.strokeStyle = tone("rule");
      context.lineWidth = 1;
      this.stroke([[plot.left, y], [plot.right, y]]);
      context.fillStyle = tone("muted");
      context.fillText(texts[i], plot.left - 7, y);
    }
    context.textAlign = "left";
    this.drawSteps();
    context.save();
    context.beginPath();
    context.rect(plot.left - 3, plot.top - 3, wide + 6, plot.bottom - plot.top + 6);
    context.clip();
    for (const { from, to, color } of this.spans) {
      context.fillStyle = tone(color);
      context.globalAlpha = 0.14;
      context.fillRect(this.x(from), plot.top, Math.max(this.x(to) - this.x(from), 1), plot.bottom - plot.top);
      context.globalAlpha = 1;
      context.strokeStyle = tone(color);
      context.setLineDash([3, 3]);
      this.stroke([[this.x(from), plot.top], [this.x(from), plot.bottom]]);
      context.setLineDash([]);
    }
    for (const line of this.lines) this.drawLine(line);
    this.drawDrag();
    context.restore();
    this.drawCursor();
    this.onDrawn?.(this);
  }

  stroke(points) {
    this.context.beginPath();
    points.forEach(([x, y], i) => (i ? this.context.lineTo(x, y) : this.context.moveTo(x, y)));
    this.context.stroke();
  }

  drawLine({ steps, values, color, dash = [], isHeld = false, low, high }) {
    const { context, plot } = this;
    const shade = tone(color);
    if (low) {
      const known = steps.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null && (!this.isLog || low[i] > 0));
      context.beginPath();
      known.forEach((i) => context.lineTo(this.x(steps[i]), this.y(high[i])));
      known.reverse().forEach((i) => context.lineTo(this.x(steps[i]), this.y(low[i])));
      context.globalAlpha = 0.18;
      context.fillStyle = shade;
      context.fill();
      context.globalAlpha = 1;
    }
    context.strokeStyle = context.fillStyle = shade;
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.beginPath();
    let height = null;
    const broken = [];
    steps.forEach((step, i) => {
      const x = this.x(step);
      if (values[i] === null) {
        broken.push(x);
        height = null;
        return;
      }
      if (height === null) context.moveTo(x, this.y(values[i]));
      else if (isHeld) context.lineTo(x, height);
      height = this.y(values[i]);
      context.lineTo(x, height);
    });
    if (isHeld && height !== null) context.lineTo(plot.right, height);
    context.stroke();
    context.setLineDash([]);
    const inView = steps.filter((step) => step >= view.steps[0] && step <= view.steps[1]).length;
    if (inView <= 40 && !isHeld) {
      steps.forEach((step, i) => {
        if (values[i] === null) return;
        context.beginPath();
        context.arc(this.x(step), this.y(values[i]), 2.5, 0, 7);
        context.fill();
      });
    }
    context.fillStyle = tone("severe");
    for (const x of broken) { // NaN and infinity are never left out
      context.beginPath();
      context.moveTo(x - 4, plot.top + 8);
      context.lineTo(x + 4, plot.top + 8);
      context.lineTo(x, plot.top);
      context.fill();
    }
  }

  drawCursor() {
    if (this.cursor === null) return;
    const { context, plot } = this;
    const x = this.x(this.cursor);
    context.strokeStyle = tone("muted");
    context.lineWidth = 1;
    this.stroke([[x, plot.top], [x, plot.bottom]]);
    for (const line of this.lines) {
      const i = this.pointOf(line, this.cursor);
      if (i < 0 || line.values[i] === null) continue;
      context.fillStyle = tone(line.color);
      context.beginPath();
      context.arc(line.isHeld ? x : this.x(line.steps[i]), this.y(line.values[i]), 4, 0, 7);
      context.fill();
    }
  }

  /** The point of a line that is read at a step: the nearest one, or the last before it where values are held. */
  pointOf({ steps, isHeld }, step) {
    const before = placeOf(steps, step);
    if (isHeld || before + 1 >= steps.length) return before;
    return before < 0 || steps[before + 1] - step < step - steps[before] ? before + 1 : before;
  }

  cursorAt({ x }) {
    const step = this.stepAt(x);
    const i = this.pointOf({ steps: this.steps }, step);
    return i < 0 ? null : this.steps[i];
  }

  cursorPlace() { return { x: this.x(this.cursor), y: (this.plot.top + this.plot.bottom) / 2 }; }

  cursorLines() {
    const lines = this.lines.map((line) => [line, this.pointOf(line, this.cursor)]).filter(([, i]) => i >= 0);
    return [
      [`step ${wholeNumber(this.cursor)}`],
      ...lines.map(([{ name, values, color, low, high }, i]) => [
        element("span", { class: "dot", style: `--dot: var(--${color})` }),
        `${name} `,
        element("b", {}, number(values[i])),
        low && low[i] !== null ? ` (${number(low[i])} to ${number(high[i])})` : "",
      ]),
    ];
  }

  onKey(key) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 };
    const [from, to] = view.steps;
    const inView = this.steps.filter((step) => step >= from && step <= to);
    if (!inView.length) return false;
    if (key === "Escape") view.show(null);
    else if (key === "Home") this.setCursor(inView[0]);
    else if (key === "End") this.setCursor(inView.at(-1));
    else if (key in moves) {
      const place = this.cursor === null ? -1 : placeOf(inView, this.cursor);
      this.setCursor(inView[clamp(place + moves[key], 0, inView.length - 1)]);
    } else return false;
    return true;
  }
}

// Math.max(...values) overflows the stack on long arrays
const max = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
const min = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

/** What the lines of a chart are, above it. */
function legend(host, lines) {
  host.before(element("p", { class: "legend" }, ...lines.map(({ name, color, dash }) =>
    element("span", {}, element("i", { style: `--dot: var(--${color})`, class: dash ? "dashed" : "" }), name))));
}

/** A chart with a button for its scale, where it can have either. */
function lineChart(host, options) {
  const chart = new LineChart(host, options);
  if (chart.canBeLog && options.hasScale !== false) {
    const button = element("button", { type: "button", class: "small scale" });
    const show = () => {
      button.textContent = chart.isLog ? "linear scale" : "logarithmic scale";
      chart.redraw();
    };
    button.addEventListener("click", () => { chart.isLog = !chart.isLog; show(); });
    host.append(button);
    show();
  }
  return chart;
}
