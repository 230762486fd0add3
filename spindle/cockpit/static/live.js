// The WebSocket: who we are, what we want to be told, and it again after every break.
//
// Rules: everything secret goes through here. The token comes behind the # of the address, which no server is sent, and
// is kept for this origin. Whatever page is open, what was asked for last is asked for again after a break.

const RETRY_MS = [200, 400, 800, 1500, 3000];
const SILENT_MS = 4000; // the cockpit says something at least every second
const TRY_AGAIN_LATER = 1013; // as many pages look as may

function token() {
  const found = location.hash.match(/\bt(?:oken)?=([\w-]+)/);
  if (found) {
    localStorage.setItem("token", found[1]);
    const rest = location.hash.slice(1).split("&").filter(one => !/^t(oken)?=/.test(one)).join("&");
    history.replaceState(null, "", location.pathname + location.search + (rest ? `#${rest}` : ""));
  }
  return localStorage.getItem("token") ?? "";
}

export class Live extends EventTarget {
  constructor(badge) {
    super();
    this.badge = badge;
    this.token = token();
    this.page = null;
    this.watches = new Map();
    this.answers = new Map();
    this.number = 0;
    this.attempt = 0;
    this.refused = false;
    addEventListener("hashchange", () => {
      if (!/\bt(oken)?=/.test(location.hash)) return;
      this.token = token();
      this.refused = false;
      this.socket?.close();
      this.open();
    });
    setInterval(() => this.look(), 1000);
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.say("connecting", "warn");
    const socket = this.socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
    this.heard = performance.now();
    socket.onopen = () => socket.send(JSON.stringify({ hello: this.token }));
    socket.onmessage = event => {
      if (socket === this.socket) this.take(JSON.parse(event.data));
    };
    socket.onclose = ({ code }) => {
      if (socket !== this.socket) return;
      for (const resolve of this.answers.values()) resolve({ ok: false, text: "the connection to the cockpit has ended" });
      this.answers.clear();
      this.dispatchEvent(new Event("broken"));
      if (this.refused) return;
      this.say(code === TRY_AGAIN_LATER ? "too many pages look" : "no connection", "bad");
      this.timer = setTimeout(() => this.open(), RETRY_MS[Math.min(this.attempt++, RETRY_MS.length - 1)]);
    };
  }

  look() {
    if (this.socket.readyState === WebSocket.OPEN && performance.now() - this.heard > SILENT_MS) {
      this.say("silent", "bad");
      this.dispatchEvent(new Event("broken"));
    }
  }

  take(message) {
    this.heard = performance.now();
    if (message.type === "welcome") {
      this.attempt = 0;
      this.say("live", "good");
      if (this.page) this.send(this.page);
      for (const watch of this.watches.values()) this.send(watch.request);
    } else if (message.type === "refused") {
      this.refused = true;
      this.say("refused", "bad");
    } else if (message.type === "figures") {
      this.say("live", "good");
    } else if (message.type === "samples") {
      this.watches.get(message.key)?.take(message);
      return;
    } else if (message.type === "answer") {
      this.answers.get(message.id)?.(message);
      this.answers.delete(message.id);
      return;
    }
    this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  open_page(section, topic = "") {
    this.page = { ask: "page", section, topic };
    this.send(this.page);
  }

  watch(key, request, take) {
    this.leave(key);
    const asked = { ask: "watch", key, ...request };
    this.watches.set(key, { request: asked, take });
    this.send(asked);
  }

  leave(key) {
    if (this.watches.delete(key)) this.send({ ask: "leave", key });
  }

  act(action, what) {
    return new Promise(resolve => {
      if (this.socket.readyState !== WebSocket.OPEN) return resolve({ ok: false, text: "there is no connection" });
      const id = ++this.number;
      this.answers.set(id, resolve);
      this.send({ ask: "act", id, action, ...what });
    });
  }

  say(word, level) {
    if (this.badge.textContent !== word) {
      this.badge.textContent = word;
      this.badge.className = `badge ${level}`;
    }
  }
}
