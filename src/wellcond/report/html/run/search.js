"use strict";

/** The search box over findings and layers: every word must occur. Arrows and Enter choose, Escape clears, "/" comes here. */
class Search {
  /**
   * @param input    Text field.
   * @param list     Element that gets the hits.
   * @param entries  {text (in lower case), kind, title, note, open (called when it is chosen)}, best first.
   */
  constructor(input, list, entries) {
    Object.assign(this, { input, list, entries, hits: [], active: -1 });
    input.addEventListener("input", () => this.search());
    input.addEventListener("focus", () => this.search());
    input.addEventListener("blur", () => this.show([]));
    input.addEventListener("keydown", (event) => this.onKey(event));
    list.addEventListener("pointerdown", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) {
        event.preventDefault(); // the field keeps the focus until the hit is opened
        this.choose(Number(option.dataset.hit));
      }
    });
    document.addEventListener("keydown", (event) => {
      const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
      if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        input.focus();
        input.select();
      }
    });
  }

  search() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = words.length ? this.entries.filter(({ text }) => words.every((word) => text.includes(word))) : [];
    this.show(hits, words.length > 0);
  }

  show(hits, isAsked = false) {
    this.hits = hits.slice(0, Search.MOST);
    this.active = this.hits.length ? 0 : -1;
    const more = hits.length - this.hits.length;
    this.list.replaceChildren(
      ...this.hits.map(({ kind, title, note }, i) => element(
        "li",
        { role: "option", id: `hit-${i}`, "data-hit": i, class: kind, "aria-selected": i === 0 ? "true" : "false" },
        element("span", { class: "sign", "aria-hidden": "true" }, MARKS[kind] ?? "●"),
        element("span", {}, element("b", {}, title), " ", element("small", {}, note)),
      )),
      ...(more > 0 ? [element("li", { class: "more" }, `and ${more} more`)] : []),
      ...(isAsked && !hits.length ? [element("li", { class: "more" }, "no layer and no finding has these words")] : []),
    );
    this.list.hidden = !this.list.childElementCount;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.mark();
  }

  mark() {
    [...this.list.querySelectorAll("[role=option]")].forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === this.active));
      if (i === this.active) option.scrollIntoView({ block: "nearest" });
    });
    if (this.active >= 0) this.input.setAttribute("aria-activedescendant", `hit-${this.active}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  choose(i) {
    const hit = this.hits[i];
    if (!hit) return;
    this.show([]);
    this.input.blur();
    hit.open();
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.hits.length) {
      this.active = (this.active + step + this.hits.length) % this.hits.length;
      this.mark();
    } else if (event.key === "Enter") this.choose(this.active);
    else if (event.key === "Escape") {
      this.input.value = "";
      this.show([]);
    } else return;
    event.preventDefault();
  }
}
Search.MOST = 40;
