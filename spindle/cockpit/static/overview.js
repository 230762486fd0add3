// The first page: is the group whole, who is in it, what has happened, what holds topics up.

import { h, keyed, klass, text, shown, confirmed } from "./dom.js";
import { age, bytes, clock, count, duration, moment, rate } from "./format.js";
import { lines, push } from "./charts.js";
import { act } from "./act.js";

const SHOWN_MAX = 120; // lines of the time line
const BUSIEST = 8;
const SILENT_S = 0.5;

export class Overview {
  constructor(store, live) {
    this.store = store;
    this.live = live;
    this.revised = false;
    this.title = h("h1", { id: "whole" }, "connecting");
    this.words = h("p", {}, "");
    this.hero = h("section", { class: "hero" }, h("div", { class: "lamp" }), h("div", { class: "headline" }, this.title, this.words));
    this.totals = {};
    for (const [name, label] of [["members", "members"], ["view", "view"], ["topics", "topics"], ["rate", "messages / s"], ["bytes", "delivered / s"]]) {
      this.totals[name] = h("b", {}, "–");
      this.hero.append(h("div", { class: "total" }, this.totals[name], h("span", {}, label)));
    }
    this.attention = h("section", { class: "panel attention", hidden: true }, h("h2", {}, "Needs attention"), this.worries = h("ul", {}));
    this.members = h("tbody", {});
    this.line = h("ol", { class: "timeline", id: "timeline" });
    this.plot = h("div", { class: "chart" });
    this.busy = h("tbody", {});
    this.applications = h("tbody", {});
    this.stored = h("div", { class: "stored" });
    this.noApplications = h("p", { class: "nothing" }, "No application is attached to this node.");
    const quiet = h("input", { type: "checkbox", id: "revised", onchange: () => { this.revised = quiet.checked; this.happened(); } });
    this.element = h("div", { class: "page overview" }, this.hero, this.attention,
      h("section", { class: "panel members" }, h("h2", {}, "Members"),
        h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "node"), h("th", {}, "state"), h("th", { class: "middle" }, "name"), h("th", { class: "wide" }, "by"), h("th", { class: "number" }, "member since"), h("th", {}))), this.members))),
      h("section", { class: "panel happened" }, h("h2", {}, "What has happened", h("label", { class: "option" }, quiet, "all views")), this.line),
      h("section", { class: "panel traffic" }, h("h2", {}, "Messages per second"), this.plot),
      h("section", { class: "panel busiest" }, h("h2", {}, "Busiest topics", h("a", { class: "option", href: "#topics" }, "all")),
        h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "topic"), h("th", { class: "number" }, "msg/s"), h("th", { class: "number" }, "bytes/s"), h("th", { class: "number" }, "median"))), this.busy)),
      h("section", { class: "panel applications" }, h("h2", {}, "Applications here"), h("div", { class: "scroll" },
        h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "application"), h("th", { class: "number" }, "process"), h("th", {}, "writes"), h("th", {}, "reads"))), this.applications)), this.noApplications),
      h("section", { class: "panel storage" }, h("h2", {}, "Journals and disks"), this.stored));
    this.chart = lines(this.plot, 180, [{ label: "messages / s", value: rate }], true);
  }

  close() { this.chart.close(); }

  update(kind) {
    const all = kind === "all";
    if (all || kind === "state" || kind === "figures" || kind === "broken") this.head();
    if (all || kind === "state" || kind === "figures") this.figures();
    if (all || kind === "happened") this.happened();
    if (all || kind === "storage") this.storage();
    if (all || kind === "history") this.history();
    if (kind === "second") this.second();
  }

  head() {
    const { store } = this;
    if (store.refused) return this.say("bad", "no access", store.refused);
    if (store.broken) return this.say("bad", "no connection", "The cockpit doesn't answer: its process or its node has ended, or the network between is down. What is shown below is old.");
    if (!store.state || !store.whole) return this.say("warn", "connecting", "");
    const { level, title, text: words } = store.whole;
    this.say(level, title === "whole" ? "The group is whole" : title === "not whole" ? "The group is not whole" : title[0].toUpperCase() + title.slice(1), words);
  }

  say(level, title, words) {
    klass(this.hero, `hero ${level}`);
    text(this.title, title);
    text(this.words, words);
    klass(this.element, `page overview${this.store.broken ? " old" : ""}`);
  }

  figures() {
    const { state, figures, silent, held, waits } = this.store;
    if (!state) return;
    const rows = [...figures.values()];
    text(this.totals.members, state.members.length);
    text(this.totals.view, state.node.view_id ?? "–");
    text(this.totals.topics, state.topics.length);
    text(this.totals.rate, rate(rows.reduce((sum, row) => sum + (row[1] || 0), 0)));
    text(this.totals.bytes, bytes(rows.reduce((sum, row) => sum + (row[2] || 0), 0)));
    this.worried(held, waits, state.incompatible);
    this.showMembers(state, silent);
    const busiest = state.topics.map(one => ({ one, row: figures.get(String(one.id)) ?? [] }))
      .sort((a, b) => (b.row[1] || 0) - (a.row[1] || 0) || a.one.name.localeCompare(b.one.name)).slice(0, BUSIEST);
    keyed(this.busy, busiest, ({ one }) => one.id, ({ one }) => h("tr", {}, h("td", { class: "name" }, h("a", { href: `#topic/${encodeURIComponent(one.name)}` }, one.name)), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" })),
      (element, { row }) => {
        const [, perSecond, size, median] = element.children;
        text(perSecond, row[0] === null || row[0] === undefined ? "–" : rate(row[1]));
        text(size, row[0] === null || row[0] === undefined ? "" : bytes(row[2]));
        text(median, duration(row[4]));
      });
    const applications = state.applications.map(one => ({ ...one, key: `${one.name} ${one.pid} ${one.address ?? ""}` }));
    const names = list => [...new Set(list)].sort().join(", ");
    shown(this.noApplications, !applications.length);
    keyed(this.applications, applications, one => one.key, () => h("tr", {}, h("td", { class: "name" }), h("td", { class: "number" }), h("td", { class: "list" }), h("td", { class: "list" })),
      (element, one) => [one.name, one.pid || one.address || "?", names(one.writers), names(one.readers)].forEach((value, at) => text(element.children[at], value)));
  }

  worried(held, waits, apart) {
    const found = [
      ...held.map(one => ({ key: `held ${one.topic} ${one.node}`, level: "warn", topic: one.topic, text: `waits for ${one.text}`, more: `${count(one.behind)} behind` })),
      ...waits.map(one => ({ key: `waits ${one.topic}`, level: "warn", topic: one.topic, text: `its history waits for ${one.text}` })),
      ...apart.map(one => ({ key: `apart ${one.topic} ${one.channel} ${one.policy} ${one.writer.node} ${one.writer.pid} ${one.reader.node} ${one.reader.pid}`, level: "bad", topic: one.topic,
        text: `incompatible ${one.policy}: ${who(one.writer)} offers ${one.offered}, ${who(one.reader)} requests ${one.requested}`, more: one.channel !== one.topic ? one.channel : "" })),
    ];
    shown(this.attention, found.length > 0);
    keyed(this.worries, found, one => one.key, one => h("li", { class: one.level }, h("a", { href: `#topic/${encodeURIComponent(one.topic)}` }, one.topic), h("span", {}), h("small", {})),
      (element, one) => { text(element.children[1], one.text); text(element.children[2], one.more ?? ""); });
  }

  showMembers(state, silent) {
    const now = Date.now() / 1000 + (this.store.skew ?? 0);
    const members = state.members.map((one, rank) => ({ ...one, rank, silent: silent[rank] ?? 0 }));
    const gone = state.missing.map(one => ({ ...one, missing: true }));
    keyed(this.members, [...members, ...gone], one => `${one.node_id} ${one.pid ?? "missing"}`, one => this.member(one, state), (element, one) => {
      const [, status, name, way, since] = element.children;
      if (one.missing) {
        klass(element, "missing");
        this.lamp(status, "bad", "missing");
        text(name, one.why);
        text(since, `lost ${age(now - one.time)} ago`);
        return;
      }
      const [level, word] = !one.live ? ["bad", "lost"] : one.silent >= SILENT_S ? ["warn", `silent ${duration(one.silent)}`]
        : one.node_id === state.node.id ? ["good", "this node"] : ["good", "alive"];
      this.lamp(status, level, one.rank === 0 ? `${word}, leads` : word);
      text(name, one.name);
      text(way, one.fabric ? `${one.fabric} ${one.fabric === "shm" ? "" : one.endpoint}` : "");
      text(since, age(now - one.since));
      since.title = moment(one.since);
    });
  }

  lamp(cell, level, word) {
    const [dot, label] = cell.children;
    klass(dot, `dot ${level}`);
    text(label, word);
  }

  member(one, state) {
    const buttons = h("td", { class: "acts" });
    if (this.store.welcome?.acts && !one.missing) {
      buttons.append(
        h("button", { class: "quiet", title: "Let it leave the group in order; its daemon ends", onclick: async () => {
          if (await confirmed(`Drain node ${one.node_id}?`, "It sends what its applications have written, leaves the group in order, and its daemon ends. Its applications lose their node.", "Drain")) act(this.live, "leave", { node: one.node_id });
        } }, "drain"));
      if (one.node_id !== state.node.id) buttons.append(
        h("button", { class: "quiet danger", title: "The others go on without it, as if it had failed", onclick: async () => {
          if (await confirmed(`Cast node ${one.node_id} out?`, "The others go on without it at once, as if it had failed. What it has sent and nobody else has is lost.", "Cast out")) act(this.live, "cast_out", { node: one.node_id });
        } }, "cast out"));
    }
    return h("tr", { "data-node": String(one.node_id) }, h("td", { class: "id" }, String(one.node_id)), h("td", { class: "status" }, h("i", {}), h("span", {})), h("td", { class: "name middle" }), h("td", { class: "wide" }), h("td", { class: "number" }), buttons);
  }

  happened() {
    const entries = this.store.happenings.filter(one => this.revised || one.kind !== "revised").slice(-SHOWN_MAX).reverse();
    keyed(this.line, entries, one => one.number, one => h("li", { class: `${one.level} ${one.kind}` }, h("time", { title: moment(one.time) }, clock(one.time)), h("span", {}, one.text)), () => {});
    if (!entries.length && !this.line.children.length) this.line.append(h("li", { class: "nothing" }, "nothing yet"));
    else this.line.querySelector("li.nothing")?.remove();
  }

  history() {
    const columns = this.store.columns.overview;
    if (columns) this.chart.set([columns[0], columns[1]]);
  }

  second() {
    const columns = this.store.columns.overview;
    if (!columns) return;
    const rows = [...this.store.figures.values()];
    push(columns, [this.store.time, rows.reduce((sum, row) => sum + (row[1] || 0), 0), rows.reduce((sum, row) => sum + (row[2] || 0), 0)]);
    this.history();
  }

  storage() {
    const found = this.store.storage;
    if (!found) return;
    if (!found.journals.length) {
      if (!this.stored.querySelector(".nothing")) this.stored.replaceChildren(h("p", { class: "nothing" }, "This node keeps no journal."));
      return;
    }
    this.stored.querySelector(".nothing")?.remove();
    if (!this.stored.children.length) this.stored.append(this.disks = h("div", { class: "disks" }), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "topic"), h("th", { class: "number" }, "messages"), h("th", { class: "number" }, "this file"), h("th", { class: "number" }, "slowest commit"))), this.journals = h("tbody", {})));
    keyed(this.disks, found.disks, one => one.path, one => h("div", { class: "disk" }, h("span", {}, one.path), h("meter", { min: 0, max: 1, low: 0.8, high: 0.92, optimum: 0.2 }), h("small", {})),
      (element, one) => { element.children[1].value = 1 - one.free / one.size; text(element.children[2], `${bytes(one.free)} of ${bytes(one.size)} free`); });
    keyed(this.journals, found.journals, one => one.topic, one => h("tr", { title: one.path }, h("td", { class: "name" }, one.topic), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" })),
      (element, one) => {
        text(element.children[1], one.failure ?? count(one.position));
        text(element.children[2], bytes(one.size));
        text(element.children[3], duration(one.commit_ms_max / 1000));
        klass(element, one.failure ? "bad" : "");
      });
  }
}

export const who = end => `${end.name || end.application} at node ${end.node}`;
