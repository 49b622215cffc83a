"use strict";

/* The page of a run: puts the charts, the tree, the search box and the tables onto what the page came with. */

const run = JSON.parse(document.getElementById("run-data").textContent);
view.full = run.steps;

// charts of the whole network

const spansOf = (findings) => findings
  .filter(({ step }) => step !== null)
  .map(({ step, until, severity }) => ({ from: step, to: until ?? run.steps[1], color: severity }));

{
  const host = byId("loss");
  if (host) {
    const timeline = new Timeline(run.findings);
    const rows = timeline.rows(host.clientWidth - 70);
    legend(host, run.loss);
    lineChart(host, {
      lines: run.loss, height: 300, label: "Loss over steps. Arrow keys read it.", marksHeight: rows * Timeline.ROW,
      spans: spansOf(run.findings.filter(({ severity }) => severity !== "note")).map((span) => ({ ...span, to: span.from })),
      onDrawn: (chart) => timeline.draw(chart),
    });
    host.append(...timeline.bars, timeline.more);
  }
  const rate = byId("rate");
  if (rate) {
    legend(rate, run.rate);
    lineChart(rate, {
      lines: run.rate, height: 220, label: "Learning rate and its limit over steps. Arrow keys read it.",
      spans: run.overLimit.map(([from, to]) => ({ from, to, color: "severe" })),
    });
  }
  for (const { name, lines } of run.network) {
    const host = element("div");
    byId("network").append(element("figure", {}, element("figcaption", {}, name), host));
    if (lines.length > 1) legend(host, lines);
    lineChart(host, { lines, height: 170, label: `${name} over steps. Arrow keys read it.`, hasScale: false });
  }
}

// the model and its layers

const nodes = run.nodes.paths.map((path, i) => ({
  path,
  name: path.slice(path.lastIndexOf(".") + 1),
  kind: run.nodes.kinds[run.nodes.kind[i]],
  parameters: run.nodes.parameters[i],
  depth: run.nodes.depth[i],
  severity: run.severities[run.nodes.severity[i]] ?? "",
  inside: run.severities[run.nodes.inside[i]] ?? "",
}));
const nodeOf = new Map(nodes.map(({ path }, i) => [path, i]));
const grids = new Map(); // decoded when they are first looked at
const gridOf = (map) => {
  if (!grids.has(map.name)) grids.set(map.name, new Grid(map, byId(`grid-${map.name}`).textContent));
  return grids.get(map.name);
};
const detail = byId("layer");
let charts = [];

function openLayer(i, { isScrolled = false } = {}) {
  const node = nodes[i];
  charts.forEach((chart) => chart.remove());
  charts = [];
  const isHere = ({ layer }) => layer === node.path || (node.path && (layer.startsWith(`${node.path}.`)));
  const own = run.findings.filter((finding) => finding.layers.some((layer) => isHere({ layer })));
  const plots = element("div", { class: "small-charts" });
  const values = [];
  detail.replaceChildren(
    element("h3", { tabindex: "-1" }, named(node.path) || node.kind),
    element("p", { class: "note" }, [
      node.path && node.kind,
      node.parameters && `${wholeNumber(node.parameters)} parameters`,
      own.length ? "" : "nothing found",
    ].filter(Boolean).join(" · ")),
    plots,
    ...own.map(({ anchor }) => {
      const card = byId(anchor).cloneNode(true);
      card.removeAttribute("id");
      return card;
    }),
  );
  for (const map of run.maps) {
    const row = map.rows.indexOf(i);
    if (row < 0) continue;
    const grid = gridOf(map);
    const points = grid.columns.map((step, column) => [step, grid.value(grid.code(row, column))]).filter(([, value]) => value !== null);
    if (!points.length) continue;
    const line = {
      name: map.title, color: "series-1", steps: points.map(([step]) => step),
      values: points.map(([, value]) => (Number.isFinite(value) ? value : null)),
    };
    values.push(map.title);
    const host = element("div");
    plots.append(element("figure", {}, element("figcaption", {}, `${map.title} `, element("b", {}, number(points.at(-1)[1]))), host));
    charts.push(new LineChart(host, {
      lines: [line], height: 130, spans: spansOf(own), hasLog: map.isLog, label: `${map.title} of ${node.path} over steps. Arrow keys read it.`,
    }));
  }
  if (!values.length) {
    plots.append(element("p", { class: "note" }, node.depth === 0 || !own.length ? "No series of its own: open a layer inside it." : ""));
  }
  if (isScrolled) detail.scrollIntoView({ block: "start" });
}

const tree = new ModelTree(byId("tree"), nodes, (i) => openLayer(i, { isScrolled: matchMedia("(max-width: 56rem)").matches }));
{
  const worst = run.findings.find(({ layer }) => layer && nodeOf.has(layer));
  const first = worst ? nodeOf.get(worst.layer) : run.maps[0]?.rows[0] ?? 0;
  whenNear(detail, () => {
    if (charts.length) return; // a search has opened another one already
    tree.select(first);
    openLayer(first);
  });
}
function showLayer(i) {
  tree.select(i);
  openLayer(i, { isScrolled: true });
  detail.querySelector("h3").focus({ preventScroll: true });
}

// heat maps

const mapHost = byId("map");
let heatMap = null;
let shownMap = null;

function showMap(map) {
  heatMap?.remove();
  shownMap = map;
  const host = mapHost.appendChild(element("div"));
  const names = map.rows.map((row) => named(nodes[row].path));
  heatMap = new HeatMap(host, {
    grid: gridOf(map), names, title: map.title, height: clamp(names.length * 16, 96, 520) + 32,
    colors: map.rows.map((row) => nodes[row].severity || ""),
    onPick: (row) => showLayer(map.rows[row]),
    onRows: ({ first, count }) => {
      byId("map-rows").textContent = count < names.length ? `layers ${first + 1} to ${first + count} of ${names.length}` : `${names.length} layers`;
    },
  });
  heatMap.onRows(heatMap);
  byId("map-zoom").hidden = names.length <= 30;
  const { low, high } = map;
  byId("map-scale").style.background = `linear-gradient(to right, ${VIRIDIS.join(", ")})`;
  byId("map-low").textContent = number(low);
  byId("map-high").textContent = number(high);
  for (const button of byId("map-choice").children) {
    button.setAttribute("aria-checked", String(button.dataset.map === map.name));
    button.tabIndex = button.dataset.map === map.name ? 0 : -1;
  }
}

if (run.maps.length) {
  const buttons = run.maps.map((map) => element(
    "button", { type: "button", role: "radio", "data-map": map.name, onclick: () => showMap(map) }, map.title,
  ));
  byId("map-choice").append(...buttons);
  byId("map-choice").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    next.click();
    next.focus();
  });
  byId("map-in").addEventListener("click", () => heatMap.zoomRows(0.5));
  byId("map-out").addEventListener("click", () => heatMap.zoomRows(2));
  byId("map-up").addEventListener("click", () => heatMap.moveRows(-Math.ceil(heatMap.count / 2)));
  byId("map-down").addEventListener("click", () => heatMap.moveRows(Math.ceil(heatMap.count / 2)));
  whenNear(mapHost, () => showMap(run.maps[0]));
}

// search

function showFinding(anchor) {
  const card = byId(anchor);
  location.hash = anchor;
  card.tabIndex = -1;
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "start" });
}

new Search(byId("search"), byId("hits"), [
  ...run.findings.map(({ rule, layer, severity, summary, anchor }) => ({
    text: `${rule} ${layer} ${severity} ${summary}`.toLowerCase(), kind: severity, title: rule, note: named(layer) || summary,
    open: () => showFinding(anchor),
  })),
  ...nodes.slice(1).map(({ path, kind, severity }, i) => ({
    text: `${path} ${kind}`.toLowerCase(), kind: severity, title: named(path), note: kind, open: () => showLayer(i + 1),
  })),
]);

// tables as CSV

const quoted = (value) => (/[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
const exported = (value) => (value === null || value === undefined ? "" : Number.isNaN(value) ? "nan" : value);

function download(name, lines) {
  const text = lines.map((line) => line.map(exported).map(quoted).join(",")).join("\n") + "\n";
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = element("a", { href: address, download: `${name}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const TABLES = {
  findings: () => [
    ["rule", "layer", "severity", "step", "until", "summary"],
    ...run.findings.map(({ rule, layer, severity, step, until, summary }) => [rule, layer, severity, step, until, summary]),
  ],
  network: () => [
    ["step", "quantity", "value"],
    ...[...run.loss, ...run.rate, ...run.network.flatMap(({ lines }) => lines)]
      .flatMap(({ name, steps, values }) => steps.map((step, i) => [step, name, values[i] ?? NaN])),
  ],
  layers: () => [
    ["layer", "type", "parameters", "severity", ...run.maps.map(({ title: heading }) => `last ${heading}`)],
    ...nodes.map(({ path, kind, parameters, severity }, i) => [path, kind, parameters, severity, ...run.maps.map((map) => {
      const row = map.rows.indexOf(i);
      const grid = gridOf(map);
      for (let column = row < 0 ? -1 : grid.columns.length - 1; column >= 0; column--) {
        const value = grid.value(grid.code(row, column));
        if (value !== null) return Number(value.toPrecision(4));
      }
      return null;
    })]),
  ],
  map: () => {
    const grid = gridOf(shownMap);
    return [["layer", ...grid.columns], ...shownMap.rows.map((node, row) => [
      nodes[node].path,
      ...grid.columns.map((_, column) => {
        const value = grid.value(grid.code(row, column));
        return value === null ? null : Number(value.toPrecision(4));
      }),
    ])];
  },
};
for (const button of document.querySelectorAll("button[data-table]")) {
  button.addEventListener("click", () => {
    const name = button.dataset.table;
    download(name === "map" ? shownMap.name : name, TABLES[name]());
  });
}
