// The primary flight display of the avionics examples, of one node or of several side by side.
//
// flight.html?nodes=1,3, or f?1,3, shows two; without, the cockpit's own node. Every display reads the topics at its own node; that
// they show the same is what the order of the group promises, and the page looks whether it is so.

import { h, keyed, klass, text, themed } from "./dom.js";
import { Live } from "./live.js";
import { Flight, draw } from "./pfd.js";

const HZ = 20, ORDER = "flight", SAMPLES_KEPT = 2000;
const TOPICS = [["flight/air_data", ORDER], ["flight/attitude", ORDER], ["flight/alerts", ""]];

themed();
const live = new Live(document.getElementById("link"));
const main = document.getElementById("displays");
const displays = new Map();
let state = null;

const wanted = () => (new URLSearchParams(location.search).get("nodes") ?? location.search.slice(1)).split(",").map(Number).filter(one => Number.isInteger(one) && one > 0).slice(0, 4);

class Display {
  constructor(node) {
    this.node = node;
    this.flight = new Flight();
    this.seen = new Map(); // place in the order -> what was there, for comparing
    this.frames = 0;
    this.canvas = h("canvas", { "data-node": String(node) });
    this.foot = h("footer", {}, h("span", {}, "node ", h("b", {}, String(node))), this.time = h("span", {}), this.place = h("span", {}), this.late = h("span", {}), this.note = h("span", {}));
    this.element = h("section", { class: "display", "data-node": String(node) }, this.canvas, this.foot);
    for (const [topic, order] of TOPICS) {
      live.watch(`${node} ${topic}`, { topic, order, node, rows: 40, hz: HZ }, message => this.take(topic, message));
    }
  }

  take(topic, message) {
    for (const row of message.rows) {
      this.flight.apply(topic, row);
      if (topic !== "flight/alerts") {
        this.last = row;
        this.seen.set(`${topic} ${row.view}:${row.sequence} ${row.value?.sequence}`, JSON.stringify(row.value));
        if (this.seen.size > SAMPLES_KEPT) this.seen.delete(this.seen.keys().next().value);
      }
    }
    this.state = message.state && message.state !== "opening" ? message.state : "";
    this.changed = true;
  }

  draw() {
    const ratio = devicePixelRatio || 1, wide = Math.round(this.canvas.clientWidth * ratio), high = Math.round(this.canvas.clientHeight * ratio);
    if (!wide) return;
    const sized = this.canvas.width !== wide || this.canvas.height !== high;
    if (sized) { this.canvas.width = wide; this.canvas.height = high; }
    if (!sized && !this.changed && performance.now() - (this.drawn ?? 0) < 500) return;
    this.changed = false;
    this.drawn = performance.now();
    this.frames++;
    draw(this.canvas.getContext("2d"), wide, high, this.flight);
    text(this.time, this.flight.clock());
    text(this.place, this.last ? `order ${this.last.view}:${this.last.sequence}` : "");
    text(this.late, this.last ? `${(Math.max(0, this.last.late) * 1000).toFixed(2)} ms` : "");
    text(this.note, this.state ?? "");
  }

  close() { for (const [topic] of TOPICS) live.leave(`${this.node} ${topic}`); }
}

function arrange() {
  if (!state) return;
  const nodes = wanted().length ? wanted() : [state.node.id];
  for (const [node, display] of displays) if (!nodes.includes(node)) { display.close(); displays.delete(node); }
  for (const node of nodes) if (!displays.has(node)) displays.set(node, new Display(node));
  keyed(main, nodes, one => one, one => displays.get(one).element, () => {});
  const here = state.members.filter(one => one.fabric === "" || one.fabric === "shm").map(one => one.node_id);
  keyed(document.getElementById("nodes"), here, one => one, one => h("a", {}, `node ${one}`), (element, one) => {
    const others = nodes.includes(one) ? nodes.filter(node => node !== one) : [...nodes, one];
    element.href = `?nodes=${(others.length ? others : [one]).join(",")}`;
    element.toggleAttribute("aria-current", nodes.includes(one));
  });
}

// Of all that two displays have both read, is each sample the same at the same place in the order?
function compare() {
  const badge = document.getElementById("same");
  const [first, ...others] = displays.values();
  if (!others.length) return text(badge, "");
  let common = 0, different = 0;
  for (const other of others) {
    for (const [place, value] of first.seen) {
      const theirs = other.seen.get(place);
      if (theirs === undefined) continue;
      common++;
      if (theirs !== value) different++;
    }
  }
  klass(badge, `badge ${different ? "bad" : common ? "good" : "warn"}`);
  text(badge, different ? `${different} samples differ` : common ? `the same: ${common} samples` : "nothing to compare yet");
}

live.addEventListener("state", ({ detail }) => { state = detail; arrange(); });
live.addEventListener("refused", ({ detail }) => main.replaceChildren(h("p", { class: "nothing" }, detail.text)));
live.open_page("flight");
setInterval(compare, 500);

function frame() {
  for (const display of displays.values()) display.draw();
  requestAnimationFrame(frame);
}
frame();
globalThis.flight = { displays, live };
