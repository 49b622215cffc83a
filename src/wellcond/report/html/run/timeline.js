"use strict";

/** Findings as bars above a plot, from where they began to where they ended; each is a link to its card. */
class Timeline {
  /** @param findings  {rule, layer, severity, step, until, when, anchor}, worst first. */
  constructor(findings) {
    this.findings = findings.filter(({ step }) => step !== null);
    this.bars = this.findings.map(({ rule, layer, severity, when, anchor }) => element(
      "a",
      { class: `bar ${severity}`, href: `#${anchor}`, title: `${rule}${layer && ` at ${named(layer)}`}, ${when}` },
      element("span", {}, `${MARKS[severity]} ${rule}`, element("small", {}, layer && ` ${named(layer)}`)),
    ));
    this.more = element("a", { class: "bar-more", href: "#findings", hidden: true });
  }

  /** Rows that are needed at a width, so that no two labels meet. */
  rows(width) {
    const [from, to] = view.full;
    return Math.min(this.place(width, (step) => ((step - from) / (to - from || 1)) * width), Timeline.MOST);
  }

  /** Gives every bar the first row in which neither it nor its label meets another; returns how many rows that takes. */
  place(width, x) {
    const ends = [];
    this.lanes = this.findings.map(({ rule, step, until }) => {
      const label = 7 * rule.length + 30;
      const begin = clamp(x(step), 0, width);
      const end = clamp(until === null ? width : x(until), begin + 3, width);
      const isLeft = begin + label > width; // a label that would leave the chart stands before its bar
      const start = isLeft ? begin - label : begin;
      const free = ends.findIndex((taken) => taken + 6 <= start);
      const lane = free < 0 ? ends.length : free;
      ends[lane] = isLeft ? end : end - begin < label ? end + label : end;
      return { lane, begin, end, side: isLeft ? "before" : end - begin < label ? "after" : "inside" };
    });
    return ends.length;
  }

  draw(chart) {
    const { left, right } = chart.plot;
    this.place(right - left, (step) => chart.x(step) - left);
    const [from, to] = view.steps;
    let hidden = 0;
    this.bars.forEach((bar, i) => {
      const { step, until } = this.findings[i];
      const { lane, begin, end, side } = this.lanes[i];
      const isOut = (until ?? to) < from || step > to;
      bar.hidden = isOut || lane >= Timeline.MOST;
      hidden += !isOut && bar.hidden;
      bar.style.left = `${left + begin}px`;
      bar.style.width = `${Math.max(end - begin, 3)}px`;
      bar.style.top = `${lane * Timeline.ROW}px`;
      bar.classList.toggle("ended", until !== null && until <= to);
      bar.dataset.label = side;
    });
    this.more.hidden = !hidden;
    this.more.textContent = `${hidden} more below`;
  }
}
Timeline.ROW = 22;
Timeline.MOST = 7;
