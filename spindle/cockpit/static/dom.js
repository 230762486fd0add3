// Elements, made and kept up to date without touching what hasn't changed.

export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(one => one !== null && one !== undefined && one !== false));
  return made;
}

export function text(element, value) {
  const shown = String(value);
  if (element.textContent !== shown) element.textContent = shown;
}

export function klass(element, value) {
  if (element.className !== value) element.className = value;
}

export function shown(element, yes) {
  if (element.hidden === yes) element.hidden = !yes;
}

// One child of `container` for each item, in their order. `make(item)` gives an element, `update(element, item)` fills it.
export function keyed(container, items, key, make, update) {
  const known = container.known ??= new Map();
  const wanted = new Set();
  let before = null;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let element = known.get(name);
    if (!element) {
      element = make(item);
      known.set(name, element);
    }
    update(element, item);
    const place = before ? before.nextSibling : container.firstChild;
    if (place !== element) container.insertBefore(element, place);
    before = element;
  }
  for (const [name, element] of known) {
    if (!wanted.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
}

export function toast(message, level = "info") {
  const place = document.getElementById("toasts");
  const made = h("div", { class: `toast ${level}` }, message);
  place.append(made);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => made.remove(), 8000);
}

// Asks before something is done that can't be undone; resolves to true or false.
export function confirmed(title, message, word) {
  const dialog = document.getElementById("dialog");
  return new Promise(resolve => {
    const end = answer => { dialog.close(); resolve(answer); };
    dialog.replaceChildren(
      h("h2", {}, title), h("p", {}, message),
      h("div", { class: "buttons" },
        h("button", { onclick: () => end(false), autofocus: true }, "Cancel"),
        h("button", { class: "danger", id: "confirm", onclick: () => end(true) }, word)));
    dialog.oncancel = () => resolve(false);
    dialog.showModal();
  });
}

export function themed() {
  const kept = localStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", document.documentElement.dataset.theme);
    dispatchEvent(new Event("themed"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themed")));
}
