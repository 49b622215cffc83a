"use strict";

// Figures name their colors after CSS variables; the theme in force gives them their values.
const figures = JSON.parse(document.getElementById("figures").textContent);
const darkTheme = window.matchMedia("(prefers-color-scheme: dark)");

function colored(node, key, styles) {
  if (Array.isArray(node)) return node.map((each) => colored(each, key, styles));
  if (node !== null && typeof node === "object") {
    return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, colored(value, name, styles)]));
  }
  if (typeof node === "string" && /color$/.test(key)) return styles.getPropertyValue("--" + node).trim() || node;
  return node;
}

function draw() {
  const styles = getComputedStyle(document.documentElement);
  for (const [id, figure] of Object.entries(figures)) {
    const { data, layout } = colored(figure, "", styles);
    Plotly.react(id, data, layout, { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]] });
  }
}

draw();
darkTheme.addEventListener("change", draw);

// Sortable tables: numbers by value, names by their order in the network; what is missing stays last.
for (const table of document.querySelectorAll("table.layers")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const descending = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && column > 0);
    const value = (row) => {
      const text = row.cells[column].dataset.value;
      return text === "" ? null : Number(text);
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return x === y ? 0 : (x < y) === descending ? 1 : -1;
    });
    table.tBodies[0].append(...rows);
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }));
}
