"use strict";

/*
The model tree, as the ARIA pattern of a tree view has it: one tab stop, arrows to move, Enter to open a layer. The modules
inside one are made when it is unfolded, so that a network of thousands of layers costs nothing until it is looked at.
*/
class ModelTree {
  /**
   * @param host   Element that gets the tree.
   * @param nodes  {path, name, kind, parameters, depth, severity, inside}, each before what is inside it.
   * @param onOpen Called with the number of a node.
   */
  constructor(host, nodes, onOpen) {
    Object.assign(this, { host, nodes, onOpen, items: new Map(), children: nodes.map(() => []), parent: nodes.map(() => -1) });
    const open = [];
    nodes.forEach((node, i) => {
      open.length = node.depth;
      if (node.depth) {
        this.parent[i] = open[node.depth - 1];
        this.children[this.parent[i]].push(i);
      }
      open.push(i);
    });
    host.setAttribute("role", "tree");
    host.append(this.item(0));
    this.unfold(0);
    if (nodes.length <= 60) nodes.forEach((_, i) => this.unfold(i));
    else nodes.forEach((node, i) => { if (node.inside && this.children[i].length <= 60) this.unfold(i); });
    this.focused = 0;
    this.items.get(0).row.tabIndex = 0;
    host.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.onKey(event.key)) event.preventDefault();
    });
    host.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (!row) return;
      const i = Number(row.dataset.node);
      if (event.target.closest(".fold-mark")) this.toggle(i);
      else this.open(i);
    });
  }

  item(i) {
    const { name, kind, parameters, depth, severity, inside } = this.nodes[i];
    const isFolder = this.children[i].length > 0;
    const row = element(
      "div",
      { class: `row ${severity || (inside ? `inside ${inside}` : "sound")}`, "data-node": i, tabindex: "-1" },
      element("span", { class: "fold-mark", "aria-hidden": "true" }, isFolder ? "▸" : ""),
      element("span", { class: "sign", "aria-hidden": "true" }, MARKS[severity] ?? (inside ? "○" : "●")),
      element("span", { class: "name" }, name || kind),
      element("small", {}, [name && kind, parameters && `${compact(parameters)} parameters`].filter(Boolean).join(" · ")),
    );
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", depth + 1);
    row.setAttribute("aria-selected", "false");
    row.setAttribute("aria-label", [name || kind, kind, severity || (inside ? `${inside} inside` : "nothing found")].join(", "));
    row.style.paddingLeft = `${0.25 + Math.min(depth, 12) * 0.9}rem`;
    const box = element("div", { class: "branch", role: "none" }, row);
    if (isFolder) row.setAttribute("aria-expanded", "false");
    this.items.set(i, { row, box, inner: null });
    return box;
  }

  isUnfolded(i) { return this.items.get(i)?.row.getAttribute("aria-expanded") === "true"; }

  unfold(i) {
    if (!this.children[i].length || !this.items.has(i)) return;
    const item = this.items.get(i);
    if (!item.inner) {
      item.inner = element("div", { role: "group" }, ...this.children[i].map((child) => this.item(child)));
      item.box.append(item.inner);
    }
    item.inner.hidden = false;
    item.row.setAttribute("aria-expanded", "true");
  }

  fold(i) {
    const item = this.items.get(i);
    if (!item.inner) return;
    item.inner.hidden = true;
    item.row.setAttribute("aria-expanded", "false");
  }

  toggle(i) {
    if (this.isUnfolded(i)) this.fold(i);
    else this.unfold(i);
  }

  focus(i) {
    this.items.get(this.focused).row.tabIndex = -1;
    this.focused = i;
    const { row } = this.items.get(i);
    row.tabIndex = 0;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  /** Unfold what a node is in, and show it as the selected one. */
  select(i) {
    const above = [];
    for (let at = this.parent[i]; at >= 0; at = this.parent[at]) above.unshift(at);
    above.forEach((each) => this.unfold(each));
    this.host.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    const { row } = this.items.get(i);
    row.setAttribute("aria-selected", "true");
    this.items.get(this.focused).row.tabIndex = -1;
    this.focused = i;
    row.tabIndex = 0;
    this.host.scrollTop += row.getBoundingClientRect().top - this.host.getBoundingClientRect().top - this.host.clientHeight / 3;
  }

  open(i) {
    this.unfold(i);
    this.select(i);
    this.items.get(i).row.focus({ preventScroll: true });
    this.onOpen(i);
  }

  /** The nodes that are shown, from top to bottom. */
  shown(i = 0) {
    return [i, ...(this.isUnfolded(i) ? this.children[i].flatMap((child) => this.shown(child)) : [])];
  }

  onKey(key) {
    const i = this.focused;
    const shown = this.shown();
    const place = shown.indexOf(i);
    if (key === "ArrowDown") this.focus(shown[Math.min(place + 1, shown.length - 1)]);
    else if (key === "ArrowUp") this.focus(shown[Math.max(place - 1, 0)]);
    else if (key === "Home") this.focus(0);
    else if (key === "End") this.focus(shown.at(-1));
    else if (key === "ArrowRight" && this.children[i].length) {
      if (this.isUnfolded(i)) this.focus(this.children[i][0]);
      else this.unfold(i);
    } else if (key === "ArrowLeft") {
      if (this.isUnfolded(i)) this.fold(i);
      else if (this.parent[i] >= 0) this.focus(this.parent[i]);
    } else if (key === "Enter" || key === " ") this.open(i);
    else return false;
    return true;
  }
}

const MARKS = { severe: "✗", warning: "!", note: "i" };

/** A count in thousands, millions or billions. */
function compact(count) {
  const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, unit] = units.find(([each]) => count >= each) ?? [1, ""];
  return `${Number((count / size).toPrecision(3))}${unit}`;
}
