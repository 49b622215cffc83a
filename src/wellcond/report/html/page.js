"use strict";

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
