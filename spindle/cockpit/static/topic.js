// One topic: its figures, latencies, members, ends, and live samples.

import { h, keyed, klass, text, shown, confirmed } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";
import { histogram, lines, push } from "./charts.js";
import { Samples } from "./samples.js";
import { act } from "./act.js";

export class TopicPage {
  constructor(store, live, name) {
    this.store = store;
    this.live = live;
    this.name = name;
    this.samples = null;
    this.channel = null;
    this.facts = h("dl", { class: "facts" });
    this.buttons = h("div", { class: "buttons" });
    this.gone = h("p", { class: "nothing", hidden: true }, "There is no such topic now, or none that you may see.");
    this.figures = {};
    const figures = h("div", { class: "figures" }, ...[["rate", "messages / s"], ["bytes", "bytes / s"], ["median", "median latency"], ["late", "99 % are not later"], ["behind", "behind"], ["delivered", "delivered"]]
      .map(([key, label]) => h("div", { class: "total" }, this.figures[key] = h("b", {}, "–"), h("span", {}, label))));
    this.at = h("p", { class: "nothing" });
    this.held = h("ul", { class: "held" });
    this.chartPlace = h("div", { class: "chart" });
    this.latencyPlace = h("div", { class: "chart" });
    this.progress = h("tbody", {});
    this.ends = h("tbody", {});
    this.noEnds = h("p", { class: "nothing" }, "Nobody announces that it writes or reads this topic.");
    this.apart = h("ul", { class: "held" });
    this.live_ = h("div", { class: "samples" });
    this.channels = h("div", { class: "chips" });
    this.element = h("div", { class: "page topic" },
      h("section", { class: "panel title" }, h("h1", {}, h("a", { href: "#topics", class: "back", title: "All topics" }, "‹"), name), this.buttons, this.facts, this.gone, figures, this.at, this.held),
      h("section", { class: "panel half" }, h("h2", {}, "Messages per second"), this.chartPlace),
      h("section", { class: "panel half" }, h("h2", {}, "Latency of the last 10 s", h("span", { class: "option" }, "from writing to delivery")), this.latencyPlace),
      h("section", { class: "panel third" }, h("h2", {}, "Who is how far"), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "node"), h("th", { class: "number" }, "received"), h("th", { class: "number" }, "delivered"), h("th", { class: "bar" }, "behind"))), this.progress)),
      h("section", { class: "panel ends" }, h("h2", {}, "Who writes and reads"), this.apart, h("div", { class: "scroll" },
        h("table", {}, h("thead", {}, h("tr", {}, h("th", {}), h("th", {}, "application"), h("th", { class: "number" }, "node"), h("th", { class: "wide" }, "type"), h("th", { class: "wide" }, "Qos"))), this.ends)), this.noEnds),
      h("section", { class: "panel live" }, h("h2", {}, "Live samples"), this.channels, this.live_));
    this.chart = lines(this.chartPlace, 170, [{ label: "messages / s", value: rate }], true);
    this.latency = null;
  }

  close() {
    this.chart.close();
    this.latency?.close();
    this.samples?.close();
    this.store.columns.topic = null;
  }

  get topic() { return this.store.state?.topics.find(one => one.name === this.name); }

  update(kind) {
    const all = kind === "all";
    klass(this.element, `page topic${this.store.broken ? " old" : ""}`);
    if (all || kind === "state") this.state();
    if (all || kind === "state" || kind === "figures") this.figure();
    if (all || kind === "detail") this.detail();
    if (kind === "history") this.history();
    if (kind === "second") this.second();
  }

  state() {
    const topic = this.topic;
    shown(this.gone, Boolean(this.store.state) && !topic);
    if (!topic) return;
    const facts = [["level", topic.level], ["type", topic.type], ["slot", bytes(topic.size_max)], ["window", `${topic.window} slots a sender`], ["members", topic.members.join(" ") || "none"], ["senders", topic.senders.join(" ") || "none"]];
    keyed(this.facts, facts, ([label]) => label, ([label]) => h("div", {}, h("dt", {}, label), h("dd", {})), (element, [, value]) => text(element.lastChild, value));
    const ends = [...topic.writers.map(one => ["writes", one]), ...topic.readers.map(one => ["reads", one])]
      .map(([does, one], at) => ({ does, ...one, key: `${at} ${does} ${one.node} ${one.pid} ${one.application} ${one.channel}` }));
    shown(this.noEnds, !ends.length);
    keyed(this.ends, ends, one => one.key, () => h("tr", {}, h("td", {}), h("td", { class: "name" }, h("span", {}), h("small", {})), h("td", { class: "number" }), h("td", { class: "wide kind" }), h("td", { class: "wide qos" })), (element, one) => {
      klass(element.children[0], one.does);
      text(element.children[0], one.does);
      text(element.children[1].firstChild, one.name || one.application);
      text(element.children[1].lastChild, [one.name && one.name !== one.application ? one.application : "", one.pid ? `process ${one.pid}` : "", one.channel].filter(Boolean).join(", "));
      text(element.children[2], one.node);
      text(element.children[3], one.type);
      element.children[3].title = one.type;
      text(element.children[4], one.qos.join(", "));
    });
    const apart = this.store.state.incompatible.filter(one => one.topic === this.name);
    keyed(this.apart, apart, one => JSON.stringify(one), one => h("li", { class: "bad" }, `incompatible ${one.policy}: ${one.writer.name || one.writer.application} at node ${one.writer.node} offers ${one.offered}, ${one.reader.name || one.reader.application} at node ${one.reader.node} requests ${one.requested}`), () => {});
    this.showChannels(topic);
    this.showButtons();
  }

  showChannels(topic) {
    const grouped = topic.type === "order group";
    const channels = grouped ? topic.channels : [topic.name];
    shown(this.channels, grouped);
    if (!channels.includes(this.channel)) this.choose(channels[0] ?? null, grouped);
    keyed(this.channels, channels, one => one, one => h("button", { class: "chip", onclick: () => { this.choose(one, grouped); this.update("state"); } }, one),
      (element, one) => klass(element, `chip${one === this.channel ? " chosen" : ""}`));
    if (!channels.length && !this.live_.children.length) this.live_.append(h("p", { class: "nothing" }, "Nobody has a topic of this order group open."));
  }

  choose(channel, grouped) {
    this.channel = channel;
    this.samples?.close();
    this.samples = channel === null ? null : new Samples(this.live, channel, grouped ? this.name : "");
    this.live_.replaceChildren(...(this.samples ? [this.samples.element] : []));
  }

  showButtons() {
    if (!this.store.welcome?.acts) return this.buttons.replaceChildren();
    const recorded = this.store.recordings.find(one => one.topic === this.name);
    const key = `${this.store.welcome.records} ${recorded?.path ?? ""}`;
    if (this.buttons.dataset.key === key) return;
    this.buttons.dataset.key = key;
    this.buttons.replaceChildren(
      ...(!this.store.welcome.records ? [] : recorded
        ? [h("button", { class: "recording", title: recorded.path, onclick: () => act(this.live, "stop_recording", { topic: this.name }) }, "● stop recording")]
        : [h("button", { onclick: () => act(this.live, "record", { topic: this.name }) }, "record")]),
      h("button", { class: "danger", onclick: async () => {
        if (await confirmed(`Delete topic ${this.name}?`, "It goes, with what it keeps for late joiners. That is refused while somebody has it open, and for logged topics.", "Delete")) {
          this.samples?.close();
          act(this.live, "delete_topic", { topic: this.name }, () => { location.hash = "topics"; });
        }
      } }, "delete"));
  }

  figure() {
    const topic = this.topic;
    if (!topic) return;
    const row = this.store.figures.get(String(topic.id)) ?? [];
    const here = row[0] !== null && row[0] !== undefined;
    text(this.figures.rate, here ? rate(row[1]) : "–");
    text(this.at, row[6] ? `As delivered at node ${row[6]}: nobody reads it at this node.` : here ? "" : "Nobody reads it, so nothing is delivered.");
    text(this.figures.bytes, here ? bytes(row[2]) : "–");
    text(this.figures.median, duration(row[4]));
    text(this.figures.late, duration(row[5]));
    text(this.figures.behind, count(row[3] ?? 0));
    text(this.figures.delivered, here ? row[0].toLocaleString("en-US") : "–");
    const held = [...this.store.held.filter(one => one.topic === this.name).map(one => ({ key: `h${one.node}`, text: `Writers wait for ${one.text}.` })),
      ...this.store.waits.filter(one => one.topic === this.name).map(one => ({ key: "w", text: `Its history waits for ${one.text}.` }))];
    keyed(this.held, held, one => one.key, () => h("li", { class: "warn" }), (element, one) => text(element, one.text));
    this.showButtons();
  }

  detail() {
    const detail = this.store.detail, topic = this.topic;
    if (!detail || detail.topic !== this.name || !topic) return;
    const stability = detail.stability;
    const front = stability ? Math.max(...stability.received) : 0;
    const room = Math.max(1, topic.window * (stability?.senders.length || 1));
    const rows = stability ? stability.members.map((node, at) => ({ node, received: stability.received[at], delivered: topic.level === "unordered" ? stability.received[at] : stability.delivered[at] })) : [];
    keyed(this.progress, rows, one => one.node, one => h("tr", {}, h("td", { class: "id" }, one.node), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "bar" }, h("meter", { min: 0, max: 1, low: 0.5, high: 0.9, optimum: 0 }), h("span", {}))), (element, one) => {
      text(element.children[1], one.received.toLocaleString("en-US"));
      text(element.children[2], one.delivered.toLocaleString("en-US"));
      const behind = front - one.delivered;
      element.children[3].firstChild.value = Math.min(1, behind / room);
      text(element.children[3].lastChild, behind ? count(behind) : "");
    });
    const bounds = this.store.welcome?.bounds;
    if (!bounds) return;
    this.latency ??= histogram(this.latencyPlace, 170, bounds);
    const counts = new Map(detail.latencies);
    const used = detail.latencies.map(([bound]) => bounds.indexOf(bound)).filter(at => at >= 0);
    const [low, high] = used.length ? [Math.max(0, Math.min(...used) - 1), Math.min(bounds.length - 1, Math.max(...used) + 1)] : [0, 10];
    const buckets = Array.from({ length: high - low + 1 }, (_, at) => low + at);
    this.latency.set([buckets, buckets.map(at => counts.get(bounds[at]) ?? 0)]);
  }

  history() {
    const columns = this.store.columns.topic;
    if (columns) this.chart.set([columns[0], columns[1]]);
  }

  second() {
    const columns = this.store.columns.topic, topic = this.topic;
    if (!columns || !topic) return;
    const row = this.store.figures.get(String(topic.id)) ?? [];
    push(columns, [this.store.time, row[1] ?? null, row[2] ?? null, row[4] ?? null]);
    this.history();
  }
}
