// Live samples of a topic: as a table, as the newest one's tree, as plots of chosen fields.
//
// Rules: bounded however long it is open; nothing is drawn more often than five times a second.

import { h, keyed, klass, text, shown } from "./dom.js";
import { clock, duration } from "./format.js";
import { lines } from "./charts.js";

const ROWS_MAX = 100, POINTS_MAX = 1200, COLUMNS_MAX = 14, FIELDS_MAX = 40, DEPTH_MAX = 3, DRAW_MS = 200, PLOTTED_MAX = 6;
const VIEWS = [["table", "Table"], ["tree", "Tree"], ["plot", "Plot"]];
let number = 0;

// The leaves of a sample with their paths, as far as they fit a table.
function leaves(value, path = "", depth = 0, found = []) {
  if (found.length >= FIELDS_MAX) return found;
  if (value !== null && typeof value === "object" && !Array.isArray(value) && depth < DEPTH_MAX) {
    for (const [name, one] of Object.entries(value)) leaves(one, path ? `${path}.${name}` : name, depth + 1, found);
  } else {
    found.push([path || "value", value]);
  }
  return found;
}

const brief = value => value === null ? "null" : typeof value === "number" ? (Number.isInteger(value) ? String(value) : String(+value.toPrecision(7)))
  : typeof value === "string" ? value.slice(0, 120) : JSON.stringify(value).slice(0, 120);

export class Samples {
  constructor(live, topic, order) {
    this.live = live;
    this.key = `samples ${++number}`;
    this.rows = [];
    this.points = { time: [], fields: new Map() };
    this.chosen = new Set();
    this.view = localStorage.getItem("samples.view") ?? "table";
    this.paused = false;
    this.fresh = 0;
    this.columns = [];
    this.note = h("p", { class: "note" }, "reading");
    this.tabs = h("div", { class: "chips" });
    this.pause = h("button", { class: "quiet", onclick: () => { this.paused = !this.paused; text(this.pause, this.paused ? "go on" : "pause"); this.draw(true); } }, "pause");
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.tree = h("div", { class: "tree" });
    this.fields = h("div", { class: "chips fields" });
    this.plot = h("div", { class: "chart" });
    this.places = {
      table: h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", {}, this.head), this.body)),
      tree: this.tree, plot: h("div", {}, this.fields, this.plot),
    };
    this.element = h("div", {}, h("div", { class: "bar" }, this.tabs, this.pause, this.note), ...Object.values(this.places));
    this.chart = null;
    this.timer = setInterval(() => this.draw(), DRAW_MS);
    live.watch(this.key, { topic, order, rows: 100, hz: 5 }, message => this.take(message));
    this.show();
  }

  close() {
    clearInterval(this.timer);
    this.live.leave(this.key);
    this.chart?.close();
  }

  show() {
    keyed(this.tabs, VIEWS, ([name]) => name, ([name, label]) => h("button", { class: "chip", "data-view": name, onclick: () => { this.view = name; localStorage.setItem("samples.view", name); this.show(); } }, label),
      (element, [name]) => klass(element, `chip${name === this.view ? " chosen" : ""}`));
    for (const [name, place] of Object.entries(this.places)) shown(place, name === this.view);
    this.draw(true);
  }

  take(message) {
    this.state = message;
    if (this.paused) return;
    for (const row of message.rows) {
      row.number = ++this.fresh;
      this.rows.unshift(row);
      this.plotted(row);
    }
    this.rows.length = Math.min(this.rows.length, ROWS_MAX);
    this.dirty = true;
  }

  plotted(row) {
    if (row.ended || row.value === null) return;
    const { time, fields } = this.points;
    time.push(row.time);
    for (const [name, value] of leaves(row.value)) {
      if (typeof value !== "number") continue;
      if (!fields.has(name)) {
        if (fields.size >= FIELDS_MAX) continue;
        fields.set(name, Array(time.length - 1).fill(null));
      }
      fields.get(name).push(value);
    }
    for (const values of fields.values()) if (values.length < time.length) values.push(null);
    if (time.length > POINTS_MAX) for (const values of [time, ...fields.values()]) values.splice(0, time.length - POINTS_MAX);
  }

  draw(anyway = false) {
    if (this.state) {
      const { state, of, count, lost } = this.state;
      klass(this.note, `note${state && state !== "opening" ? " warn" : ""}`);
      text(this.note, state || `${of}, ${count.toLocaleString("en-US")} read${lost ? `, ${lost.toLocaleString("en-US")} skipped` : ""}`);
    }
    if (!this.dirty && !anyway) return;
    this.dirty = false;
    if (this.view === "table") this.drawTable();
    else if (this.view === "tree") this.drawTree();
    else this.drawPlot();
  }

  drawTable() {
    for (const row of this.rows.slice(0, 20)) {
      for (const [name] of leaves(row.value)) if (!this.columns.includes(name) && this.columns.length < COLUMNS_MAX && !(row.value === null)) this.columns.push(name);
    }
    keyed(this.head, ["time", "late", "node", "sequence", ...this.columns], one => one, one => h("th", { class: this.columns.includes(one) ? "" : "number" }, one), () => {});
    keyed(this.body, this.rows, one => one.number, one => {
      const values = new Map(leaves(one.value));
      return h("tr", { class: one.ended ? "ended" : "" }, h("td", { class: "number" }, clock(one.time, 3)), h("td", { class: "number" }, duration(Math.max(0, one.late))), h("td", { class: "number" }, String(one.node)), h("td", { class: "number" }, `${one.view}:${one.sequence}`),
        ...(one.cut ? [h("td", { colspan: String(Math.max(1, this.columns.length)) }, `${one.size} characters: ${one.cut.slice(0, 100)}…`)]
          : this.columns.map((name, at) => h("td", { class: typeof values.get(name) === "number" ? "number" : "" }, one.ended && at === 0 ? `${one.ended}: ${brief(values.get(name) ?? null)}` : values.has(name) ? brief(values.get(name)) : ""))));
    }, (element, one) => {
      const missing = this.columns.length + 4 - element.children.length;
      if (missing > 0 && !one.cut) for (let at = 0; at < missing; at++) element.append(h("td", {}));
    });
  }

  drawTree() {
    const row = this.rows[0];
    if (!row) return this.tree.replaceChildren(h("p", { class: "nothing" }, "no sample yet"));
    const { number: _, ...shownRow } = row;
    const open = new Set([...this.tree.querySelectorAll("details[open]")].map(one => one.dataset.path));
    const first = !this.tree.querySelector("details");
    this.tree.replaceChildren(branch("sample", shownRow.cut ? shownRow : shownRow.value, "sample", open, first),
      branch("about it", { written: clock(row.time, 3), late: duration(Math.max(0, row.late)), node: row.node, view: row.view, sequence: row.sequence }, "about", open, false));
  }

  drawPlot() {
    const { time, fields } = this.points;
    if (!this.chosen.size) [...fields].filter(([name, values]) => !/(^|\.)(time|time_ns|sequence|number)$/.test(name) && new Set(values.slice(-50)).size > 2).slice(0, 2).forEach(([name]) => this.chosen.add(name));
    keyed(this.fields, [...fields.keys()], one => one, one => h("button", { class: "chip", onclick: () => {
      this.chosen.has(one) ? this.chosen.delete(one) : this.chosen.size < PLOTTED_MAX && this.chosen.add(one);
      this.draw(true);
    } }, one), (element, one) => klass(element, `chip${this.chosen.has(one) ? " chosen" : ""}`));
    const names = [...this.chosen].filter(one => fields.has(one));
    if (names.join() !== this.plottedNames) {
      this.plottedNames = names.join();
      this.chart?.close();
      this.chart = names.length ? lines(this.plot, 260, names.map(label => ({ label, value: brief, free: true }))) : null;
    }
    this.chart?.set([time.slice(), ...names.map(one => fields.get(one).slice())]);
  }
}

const CHILDREN_MAX = 200;

function branch(name, value, path, open, first) {
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, h("span", { class: "key" }, name), h("span", { class: typeof value }, typeof value === "string" ? JSON.stringify(value) : String(value)));
  const entries = Object.entries(value);
  return h("details", { open: first || open.has(path), "data-path": path }, h("summary", {}, h("span", { class: "key" }, name), h("small", {}, Array.isArray(value) ? `${entries.length} elements` : `${entries.length} members`)),
    ...entries.slice(0, CHILDREN_MAX).map(([key, one]) => branch(key, one, `${path}.${key}`, open, false)),
    entries.length > CHILDREN_MAX ? h("div", { class: "leaf" }, `and ${entries.length - CHILDREN_MAX} more`) : null);
}
