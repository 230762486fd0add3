// All topics: how fast, how large, how late, who writes and reads, who holds them up.

import { h, keyed, klass, text, shown } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";
import { spark } from "./charts.js";

const COLUMNS = [
  ["topic", "topic", "name", one => one.name], ["level", "level", "middle", one => one.level],
  ["type", "type", "wide", one => one.type], ["rate", "msg/s", "number", one => one.row[1] || 0],
  ["lately", "lately", "wide", one => one.row[1] || 0], ["bytes", "bytes/s", "number", one => one.row[2] || 0],
  ["median", "median", "number middle", one => one.row[4] ?? -1], ["late", "99 %", "number middle", one => one.row[5] ?? -1],
  ["behind", "behind", "number", one => one.row[3] || 0], ["writers", "writers", "number middle", one => one.writers.length],
  ["readers", "readers", "number middle", one => one.readers.length], ["members", "members", "middle", one => one.members.join(" ")],
  ["held", "waits for", "list", one => one.held],
];

export class Topics {
  constructor(store, live) {
    this.store = store;
    this.order = localStorage.getItem("topics.order") ?? "topic";
    this.down = localStorage.getItem("topics.down") === "1";
    this.body = h("tbody", {});
    this.heads = new Map(COLUMNS.map(([name, label, classes]) => [name, h("th", { class: classes }, h("button", { onclick: () => this.sort(name) }, label))]));
    this.filter = h("input", { type: "search", placeholder: "Filter: name, type or application", "aria-label": "Filter", oninput: () => this.show() });
    this.summary = h("span", { class: "option" });
    this.nothing = h("p", { class: "nothing" }, "No topic.");
    this.element = h("div", { class: "page" }, h("section", { class: "panel" },
      h("h2", {}, "Topics", this.summary), this.filter,
      h("div", { class: "scroll" }, h("table", { class: "topics", id: "topics" }, h("thead", {}, h("tr", {}, ...this.heads.values())), this.body)), this.nothing));
  }

  close() {}

  update(kind) {
    if (kind === "all" || kind === "state" || kind === "figures") this.show();
    if (kind === "second") for (const element of this.body.children) spark(element.querySelector("canvas"), this.store.sparks.get(element.dataset.id) ?? []);
    klass(this.element, `page${this.store.broken ? " old" : ""}`);
  }

  sort(name) {
    this.down = this.order === name ? !this.down : ["rate", "bytes", "median", "late", "behind", "lately"].includes(name);
    this.order = name;
    localStorage.setItem("topics.order", name);
    localStorage.setItem("topics.down", this.down ? "1" : "0");
    this.show();
  }

  show() {
    const { state, figures, held } = this.store;
    if (!state) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const value = COLUMNS.find(([name]) => name === this.order)[3];
    const rows = state.topics.map(one => ({ ...one, row: figures.get(String(one.id)) ?? [], held: held.filter(who => who.topic === one.name).map(who => `node ${who.node}`).join(", ") }))
      .filter(one => !wanted || [one.name, one.type, ...one.channels, ...one.writers.map(end => end.application), ...one.readers.map(end => end.application)].some(text => text.toLowerCase().includes(wanted)))
      .sort((a, b) => { const [x, y] = [value(a), value(b)]; return (x < y ? -1 : x > y ? 1 : 0) * (this.down ? -1 : 1) || a.name.localeCompare(b.name); });
    text(this.summary, `${rows.length === state.topics.length ? "" : `${rows.length} of `}${state.topics.length}`);
    shown(this.nothing, !rows.length);
    for (const [name, head] of this.heads) head.ariaSort = name === this.order ? (this.down ? "descending" : "ascending") : "none";
    keyed(this.body, rows, one => String(one.id), one => this.row(one), (element, one) => {
      const cells = element.children, here = one.row[0] !== null && one.row[0] !== undefined;
      const apart = state.incompatible.some(pair => pair.topic === one.name);
      cells[3].title = one.row[6] ? `as delivered at node ${one.row[6]}` : here ? "" : "nobody reads it";
      klass(element, `${one.held ? "warn" : ""}${apart ? " bad" : ""}${here ? "" : " elsewhere"}`);
      text(cells[0].firstChild, one.name);
      const shownText = [null, one.level, one.type, here ? rate(one.row[1]) : "–", null, here ? bytes(one.row[2]) : "", duration(one.row[4]), duration(one.row[5]), one.row[3] ? count(one.row[3]) : "–", one.writers.length, one.readers.length, one.members.join(" ") || "–", one.held || (apart ? "incompatible Qos" : "")];
      shownText.forEach((value, at) => { if (value !== null) text(cells[at], value); });
    });
  }

  row(one) {
    return h("tr", { "data-id": String(one.id), onclick: event => { if (!event.target.closest("a")) location.hash = `topic/${encodeURIComponent(one.name)}`; } },
      ...COLUMNS.map(([name, , classes]) => h("td", { class: classes }, name === "topic" ? h("a", { href: `#topic/${encodeURIComponent(one.name)}` }) : name === "lately" ? h("canvas", { class: "spark" }) : "")));
  }
}
