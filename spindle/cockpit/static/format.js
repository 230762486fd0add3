// Figures for people. Everything takes the unit's base: seconds, bytes, per second.

const scaled = (value, units, base) => {
  let at = 0;
  while (Math.abs(value) >= base * 0.9995 && at < units.length - 1) { value /= base; at++; }
  const digits = at === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return `${value.toFixed(digits)}${units[at]}`;
};

export const count = value => value === null || value === undefined ? "–" : scaled(value, ["", " k", " M", " G", " T"], 1000);

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : count(value);
}

export const bytes = value => value === null || value === undefined ? "–" : scaled(value, [" B", " kB", " MB", " GB", " TB"], 1000);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(seconds < 1e-5 ? 1 : 0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 1e-2 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return age(seconds);
}

export function age(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const two = value => String(value).padStart(2, "0");

export function clock(time, fraction = 0) {
  const at = new Date(time * 1000);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return fraction ? `${text}.${String(at.getMilliseconds()).padStart(3, "0").slice(0, fraction)}` : text;
}

export function moment(time) {
  const at = new Date(time * 1000), now = new Date();
  const day = at.toDateString() === now.toDateString() ? "" : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `;
  return day + clock(time);
}
