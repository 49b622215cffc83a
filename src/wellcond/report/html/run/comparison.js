"use strict";

/* The page of a comparison: one chart per quantity, with a line for each run. */

const comparison = JSON.parse(byId("comparison-data").textContent);
view.full = comparison.steps;
comparison.charts.forEach(({ name, lines }, i) => {
  const host = element("div");
  byId("charts").append(element("figure", { class: "curve" }, element("figcaption", {}, name), host));
  legend(host, lines);
  lineChart(host, { lines, height: i ? 180 : 320, label: `${name} over steps. Arrow keys read it.` });
});
