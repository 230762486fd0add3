// The cockpit: what is known of the group, and which page of it is open.

import { h, text, themed } from "./dom.js";
import { Live } from "./live.js";
import { SPARK } from "./charts.js";
import { Overview } from "./overview.js";
import { Topics } from "./topics.js";
import { TopicPage } from "./topic.js";
import { Counters } from "./counters.js";

const HAPPENINGS_MAX = 500;
const PAGES = [["overview", "Overview"], ["topics", "Topics"], ["counters", "Counters"]];

// What the cockpit has told. `figures` by topic id: [delivered, rate, bytes/s, behind, median s, 99% s, told by].
const store = {
  welcome: null, state: null, figures: new Map(), sparks: new Map(), whole: null, held: [], waits: [], silent: [],
  counters: [], time: 0, happenings: [], storage: null, detail: null, recordings: [], broken: true,
  columns: { overview: null, counters: null, topic: null },
};

themed();
const live = new Live(document.getElementById("link"));
const main = document.getElementById("main");
let page = null;
let number = 0; // of the last look

const navigation = new Map(PAGES.map(([name, label]) => [name, h("a", { href: `#${name}` }, label)]));
document.getElementById("nav").append(...navigation.values(), h("a", { href: "flight.html" }, "Flight"));

function place() {
  const [section, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  return section === "topic" ? ["topic", rest.join("/")] : [navigation.has(section) ? section : "overview", ""];
}

function open() {
  const [section, topic] = place();
  page?.close();
  store.detail = null;
  page = section === "topics" ? new Topics(store, live) : section === "counters" ? new Counters(store, live)
    : section === "topic" ? new TopicPage(store, live, topic) : new Overview(store, live);
  main.replaceChildren(page.element);
  for (const [name, link] of navigation) {
    const here = name === section || (name === "topics" && section === "topic");
    link.toggleAttribute("aria-current", here);
  }
  live.open_page(section, topic);
  page.update("all");
}

const told = kind => page?.update(kind);

live.addEventListener("welcome", ({ detail }) => {
  store.welcome = detail;
  store.happenings = [];
  store.broken = false;
  store.skew = detail.time - Date.now() / 1000;
  told("all");
});
live.addEventListener("state", ({ detail }) => {
  store.state = detail;
  const known = new Set(detail.topics.map(one => String(one.id)));
  for (const kept of [store.figures, store.sparks]) for (const id of kept.keys()) if (!known.has(id)) kept.delete(id);
  const node = detail.node;
  text(document.getElementById("where"), node.id ? `node ${node.id} · domain ${node.domain}` : "");
  document.title = node.id ? `Spindle: node ${node.id}, domain ${node.domain}` : "Spindle cockpit";
  told("state");
});
live.addEventListener("figures", ({ detail }) => {
  if (detail.all) store.figures = new Map();
  for (const [id, row] of Object.entries(detail.topics)) store.figures.set(id, row);
  Object.assign(store, { whole: detail.whole, held: detail.held, waits: detail.waits, silent: detail.silent,
    counters: detail.counters, time: detail.time, recordings: detail.recordings });
  store.broken = false;
  const second = Math.floor(detail.time) !== number;
  number = Math.floor(detail.time);
  if (second) remember();
  told("figures");
  if (second) told("second");
});
live.addEventListener("happened", ({ detail }) => {
  store.happenings = [...store.happenings, ...detail.entries].slice(-HAPPENINGS_MAX);
  told("happened");
});
live.addEventListener("history", ({ detail }) => {
  store.columns[detail.of] = detail.columns;
  told("history");
});
live.addEventListener("storage", ({ detail }) => { store.storage = detail; told("storage"); });
live.addEventListener("detail", ({ detail }) => { store.detail = detail; told("detail"); });
live.addEventListener("refused", ({ detail }) => { store.refused = detail.text; told("all"); });
live.addEventListener("broken", () => { store.broken = true; told("broken"); });

// Once a second: the small lines in the table of topics.
function remember() {
  for (const [id, row] of store.figures) {
    let values = store.sparks.get(id);
    if (!values) store.sparks.set(id, values = []);
    values.push(row[1] || 0);
    if (values.length > SPARK) values.shift();
  }
}

addEventListener("hashchange", () => { if (!/\bt(oken)?=/.test(location.hash)) open(); });
open();
// For tests and the curious: what the page knows.
globalThis.cockpit = { store, live };
