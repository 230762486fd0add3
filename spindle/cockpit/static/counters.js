// The node's counters over the last quarter of an hour, as rates.

import { h, klass, text } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";
import { lines, push } from "./charts.js";

const STATES = new Set(["view_id", "lap_ns_max"]); // not counts
const forms = name => name === "busy_ns" ? value => `${(value / 1e7).toFixed(1)} %` : name === "lap_ns_max" ? value => duration(value / 1e9) : name.endsWith("bytes") ? bytes : STATES.has(name) ? count : rate;

export class Counters {
  constructor(store) {
    this.store = store;
    this.cards = [];
    this.grid = h("div", { class: "cards" });
    this.element = h("div", { class: "page" }, h("section", { class: "panel" }, h("h2", {}, "Counters of this node", h("span", { class: "option" }, "per second, last 15 minutes")), this.grid));
  }

  close() { for (const card of this.cards) card.chart.close(); }

  update(kind) {
    klass(this.element, `page${this.store.broken ? " old" : ""}`);
    if (!this.cards.length && this.store.welcome) this.make();
    if (kind === "all" || kind === "history") this.history();
    if (kind === "figures" || kind === "all") this.cards.forEach((card, at) => text(card.total, card.form === null ? "" : total(card.name, this.store.counters[at])));
    if (kind === "second" && this.store.columns.counters) {
      push(this.store.columns.counters, [this.store.time, ...this.store.counters]);
      this.history();
    }
  }

  make() {
    this.cards = this.store.welcome.counters.map(({ name, help }) => {
      const place = h("div", { class: "chart" }), total = h("b", {}), form = forms(name);
      this.grid.append(h("div", { class: "card", title: help }, h("h3", {}, name.replaceAll("_", " "), total), h("p", {}, help), place));
      return { name, total, form, chart: lines(place, 96, [{ label: name, value: form }], true) };
    });
  }

  history() {
    const columns = this.store.columns.counters;
    if (!columns || columns[0].length < 2) return;
    this.cards.forEach((card, at) => {
      const values = columns[at + 1];
      if (STATES.has(card.name)) return card.chart.set([columns[0], values]);
      const speeds = values.slice(1).map((value, k) => value === null || values[k] === null || value < values[k] ? null : (value - values[k]) / Math.max(0.2, columns[0][k + 1] - columns[0][k]));
      card.chart.set([columns[0].slice(1), speeds]);
    });
  }
}

function total(name, value) {
  if (value === undefined) return "";
  if (name === "lap_ns_max" || name === "busy_ns") return duration(value / 1e9);
  return name.endsWith("bytes") ? bytes(value) : value.toLocaleString("en-US");
}
