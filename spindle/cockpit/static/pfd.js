// What pilots look at: horizon, speed, altitude and heading tapes, vertical speed, alerts.
//
// A figure that is missing or old is shown as amber dashes, never as its last value. The horizon is placed by the
// flight-path angle (vertical rate over groundspeed), as an airliner doesn't send its pitch; the label FPA says so.

const FPM_PER_KT = 101.2686, STALE_S = 15, ALERTS_SHOWN = 3;
const SKY = "#1d6fb8", GROUND = "#7a4b22", AMBER = "#f5b941", GREEN = "#4be08a", WHITE = "#f2f6fa", GREY = "#9fb0c0", MAGENTA = "#ff6bd6", CYAN = "#5fd7ff", RED = "#ff5a52";

export class Flight {
  constructor() {
    this.figures = new Map(); // name -> [value, flight time]
    this.texts = new Map();
    this.alerts = new Map(); // instance -> {kind, text, node}
    this.time = NaN;
  }

  apply(topic, row) {
    const value = row.value;
    if (topic === "flight/alerts") {
      if (row.ended) this.alerts.delete(row.instance);
      else if (value) this.alerts.set(row.instance, { kind: value.kind, text: value.text, node: row.node });
      return;
    }
    if (!value || row.ended) return;
    if (typeof value.flight_time === "number") this.time = value.flight_time;
    for (const [name, one] of Object.entries(value)) {
      if (typeof one === "number") this.figures.set(name, [one, this.time]);
      else if (one && one !== "NaN" && one !== "Infinity" && one !== "-Infinity") this.texts.set(name, one);
    }
  }

  get(name) {
    const found = this.figures.get(name);
    return found && this.time - found[1] <= STALE_S ? found[0] : null;
  }

  clock() {
    return Number.isNaN(this.time) ? "--:--:--Z" : `${new Date(this.time * 1000).toISOString().slice(0, 19).replace("T", " ")}Z`;
  }
}

export function draw(pen, width, height, flight) {
  const unit = Math.min(width / 800, height / 600); // everything below is in 800 by 600
  pen.setTransform(unit, 0, 0, unit, (width - 800 * unit) / 2, (height - 600 * unit) / 2);
  pen.fillStyle = "#05070a";
  pen.fillRect(-2000, -2000, 4800, 4800);
  pen.textBaseline = "middle";
  pen.lineCap = "butt";
  horizon(pen, flight);
  speed(pen, flight);
  altitude(pen, flight);
  verticalSpeed(pen, flight);
  heading(pen, flight);
  top(pen, flight);
  bottom(pen, flight);
}

const font = (size, weight = 500) => `${weight} ${size}px "DejaVu Sans Mono", ui-monospace, Menlo, Consolas, monospace`;

function write(pen, value, x, y, size, colour, align = "left", weight = 500) {
  pen.font = font(size, weight);
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.fillText(value, x, y);
}

function line(pen, colour, width, ...points) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  points.forEach(([x, y], at) => at ? pen.lineTo(x, y) : pen.moveTo(x, y));
  pen.stroke();
}

function within(pen, x, y, wide, high, work) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, wide, high);
  pen.clip();
  work();
  pen.restore();
}

const shown = (value, digits = 0) => value === null ? "---" : value.toFixed(digits);

function horizon(pen, flight) {
  const [left, up, wide, high] = [130, 56, 420, 396], [x, y] = [left + wide / 2, up + high / 2];
  const roll = flight.get("roll_deg"), rate = flight.get("vertical_rate_fpm"), ground = flight.get("groundspeed_kt");
  const path = rate !== null && ground !== null && ground >= 30 ? Math.atan2(rate, ground * FPM_PER_KT) * 180 / Math.PI : null;
  const scale = 11; // pixels a degree
  within(pen, left, up, wide, high, () => {
    if (roll === null) {
      pen.fillStyle = "#11161c";
      pen.fillRect(left, up, wide, high);
      return write(pen, "ATT", x, y, 34, AMBER, "center", 700);
    }
    pen.save();
    pen.translate(x, y);
    pen.rotate(-roll * Math.PI / 180);
    pen.translate(0, (path ?? 0) * scale);
    pen.fillStyle = SKY;
    pen.fillRect(-900, -1800, 1800, 1800);
    pen.fillStyle = GROUND;
    pen.fillRect(-900, 0, 1800, 1800);
    line(pen, WHITE, 2.4, [-900, 0], [900, 0]);
    for (let mark = -30; mark <= 30; mark += 2.5) {
      if (!mark) continue;
      const half = mark % 10 === 0 ? 74 : mark % 5 === 0 ? 44 : 18, at = -mark * scale;
      line(pen, WHITE, mark % 5 === 0 ? 2 : 1.2, [-half, at], [half, at]);
      if (mark % 10 === 0 && Math.abs(at + (path ?? 0) * scale) < 140) for (const side of [-1, 1]) write(pen, Math.abs(mark), side * (half + 20), at, 15, WHITE, "center");
    }
    pen.restore();
    rollScale(pen, x, y, roll);
    pen.fillStyle = "#05070a";
    for (const side of [-1, 1]) {
      pen.strokeStyle = "#05070a"; pen.lineWidth = 9;
      pen.beginPath(); pen.moveTo(x + side * 128, y); pen.lineTo(x + side * 62, y); pen.lineTo(x + side * 62, y + 16); pen.stroke();
      pen.strokeStyle = AMBER; pen.lineWidth = 4.5;
      pen.beginPath(); pen.moveTo(x + side * 128, y); pen.lineTo(x + side * 62, y); pen.lineTo(x + side * 62, y + 16); pen.stroke();
    }
    pen.fillStyle = AMBER;
    pen.fillRect(x - 5, y - 5, 10, 10);
  });
  write(pen, "FPA", left + 8, up + high - 16, 14, WHITE);
  write(pen, path === null ? "---" : `${path >= 0 ? "+" : ""}${path.toFixed(1)}°`, left + 44, up + high - 16, 16, path === null ? AMBER : WHITE);
  if (roll !== null) write(pen, `ROLL ${Math.abs(roll).toFixed(0)}°${Math.abs(roll) < 0.5 ? "" : roll > 0 ? "R" : "L"}`, left + wide - 8, up + high - 16, 16, WHITE, "right");
}

function rollScale(pen, x, y, roll) {
  const radius = 172, at = (angle, distance) => [x + distance * Math.sin(angle * Math.PI / 180), y - distance * Math.cos(angle * Math.PI / 180)];
  for (const angle of [-60, -45, -30, -20, -10, 0, 10, 20, 30, 45, 60]) line(pen, WHITE, 2, at(angle, radius), at(angle, radius + (angle % 30 === 0 ? 16 : 9)));
  const pointer = Math.max(-65, Math.min(65, -roll));
  pen.fillStyle = Math.abs(roll) > 25 ? AMBER : "#ffe14a";
  pen.beginPath();
  for (const [angle, distance] of [[pointer, radius - 1], [pointer - 3.4, radius - 19], [pointer + 3.4, radius - 19]]) pen.lineTo(...at(angle, distance));
  pen.fill();
}

function tape(pen, left, wide, label, value, scale, pointer) {
  const [up, high] = [56, 396];
  pen.fillStyle = "#151d26";
  pen.fillRect(left, up, wide, high);
  if (value === null) {
    write(pen, label, left + wide / 2, up + high / 2 - 34, 15, GREY, "center");
    return write(pen, "-----", left + wide / 2, up + high / 2, 22, AMBER, "center", 700);
  }
  within(pen, left, up, wide, high, () => scale(up + high / 2));
  pointer(up + high / 2);
}

function speed(pen, flight) {
  const value = flight.get("ias_kt"), altitude = flight.get("altitude_ft"), limited = altitude !== null && altitude < 10000;
  const over = limited && value > 250;
  tape(pen, 16, 96, "SPEED", value, middle => {
    const scale = 4.4;
    if (limited) {
      const limit = middle - (250 - value) * scale;
      for (let y = Math.min(limit, 460); y > 40; y -= 12) { pen.fillStyle = RED; pen.fillRect(106, y - 7, 6, 7); }
    }
    for (let mark = Math.ceil((value - 50) / 10) * 10; mark <= value + 50; mark += 10) {
      if (mark < 0) continue;
      const y = middle - (mark - value) * scale;
      line(pen, WHITE, 1.6, [98, y], [112, y]);
      if (mark % 20 === 0) write(pen, mark, 90, y, 17, WHITE, "right");
    }
  }, middle => box(pen, 18, middle, 84, value.toFixed(0), over ? RED : WHITE, 1));
  const mach = flight.get("mach");
  write(pen, "MACH", 18, 470, 13, GREY);
  write(pen, mach === null ? "---" : mach.toFixed(3).replace(/^0/, ""), 112, 470, 17, mach === null ? AMBER : GREEN, "right");
}

function box(pen, left, middle, wide, value, colour, side) {
  pen.fillStyle = "#05070a";
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  pen.beginPath();
  const [near, far] = side > 0 ? [left + wide, left] : [left, left + wide], tip = near + side * 10;
  pen.moveTo(far, middle - 19); pen.lineTo(near, middle - 19); pen.lineTo(near, middle - 8); pen.lineTo(tip, middle); pen.lineTo(near, middle + 8); pen.lineTo(near, middle + 19); pen.lineTo(far, middle + 19);
  pen.closePath();
  pen.fill();
  pen.stroke();
  write(pen, value, left + wide - 8, middle + 1, 24, colour, "right", 700);
}

function altitude(pen, flight) {
  const value = flight.get("altitude_ft"), selected = flight.get("selected_altitude_ft"), setting = flight.get("barometric_setting_hpa");
  tape(pen, 568, 112, "ALT", value, middle => {
    const scale = 0.34;
    for (let mark = Math.ceil((value - 620) / 100) * 100; mark <= value + 620; mark += 100) {
      const y = middle - (mark - value) * scale;
      line(pen, WHITE, 1.6, [568, y], [mark % 500 === 0 ? 586 : 578, y]);
      if (mark % 200 === 0) write(pen, mark, 668, y, 16, WHITE, "right");
    }
    if (selected !== null) {
      const y = Math.max(66, Math.min(442, middle - (selected - value) * scale));
      pen.fillStyle = MAGENTA;
      pen.beginPath(); pen.moveTo(569, y - 12); pen.lineTo(582, y - 12); pen.lineTo(576, y); pen.lineTo(582, y + 12); pen.lineTo(569, y + 12); pen.fill();
    }
  }, middle => box(pen, 586, middle, 92, value.toFixed(0), WHITE, -1));
  write(pen, setting === null ? "---" : `${setting.toFixed(0)} hPa`, 680, 470, 16, setting === null ? AMBER : GREEN, "right");
  write(pen, "QNH", 568, 470, 13, GREY);
}

const RATES = [0, 500, 1000, 1500, 2000, 4000, 6000];
function rateAt(rate) {
  const size = Math.min(Math.abs(rate), 6000);
  const place = RATES.findIndex((one, at) => at && size <= one);
  return Math.sign(rate) * (place - 1 + (size - RATES[place - 1]) / (RATES[place] - RATES[place - 1])) * 29;
}

function verticalSpeed(pen, flight) {
  const value = flight.get("vertical_rate_fpm"), left = 700, middle = 254;
  pen.fillStyle = "#151d26";
  pen.fillRect(left, 56, 84, 396);
  write(pen, "VS", left + 66, 68, 13, GREY, "center");
  for (const rate of [-6000, -4000, -2000, -1000, 0, 1000, 2000, 4000, 6000]) {
    const y = middle - rateAt(rate);
    line(pen, WHITE, 1.6, [left + 26, y], [left + 36, y]);
    if (rate) write(pen, Math.abs(rate) / 1000, left + 20, y, 13, WHITE, "right");
  }
  if (value === null) return write(pen, "----", left + 62, middle, 18, AMBER, "center", 700);
  const colour = value <= -3000 ? AMBER : GREEN, y = middle - rateAt(value);
  pen.fillStyle = colour;
  pen.fillRect(left + 40, Math.min(middle, y), 14, Math.abs(y - middle));
  write(pen, `${value >= 0 ? "+" : "-"}${Math.abs(value).toFixed(0)}`, left + 84, 470, 17, colour, "right", 700);
}

function heading(pen, flight) {
  const value = flight.get("heading_deg"), track = flight.get("track_deg"), [left, up, wide, high] = [130, 462, 420, 52], middle = left + wide / 2, scale = 6.4;
  pen.fillStyle = "#151d26";
  pen.fillRect(left, up, wide, high);
  if (value === null) return write(pen, "HDG ---", middle, up + high / 2, 20, AMBER, "center", 700);
  within(pen, left, up, wide, high, () => {
    for (let mark = Math.ceil((value - 34) / 5) * 5; mark <= value + 34; mark += 5) {
      const x = middle + (mark - value) * scale, degree = (mark % 360 + 360) % 360;
      line(pen, WHITE, 1.6, [x, up], [x, up + (mark % 10 === 0 ? 12 : 7)]);
      if (mark % 10 === 0) write(pen, { 0: "N", 90: "E", 180: "S", 270: "W" }[degree] ?? String(degree / 10).padStart(2, "0"), x, up + 26, degree % 90 === 0 ? 19 : 16, degree % 90 === 0 ? CYAN : WHITE, "center");
    }
    if (track !== null) {
      const x = middle + (((track - value + 540) % 360) - 180) * scale;
      pen.strokeStyle = GREEN; pen.lineWidth = 2;
      pen.beginPath(); pen.moveTo(x, up + 2); pen.lineTo(x + 6, up + 10); pen.lineTo(x, up + 18); pen.lineTo(x - 6, up + 10); pen.closePath(); pen.stroke();
    }
  });
  pen.fillStyle = "#05070a";
  pen.fillRect(middle - 34, up + high - 18, 68, 26);
  pen.strokeStyle = WHITE; pen.lineWidth = 1.6;
  pen.strokeRect(middle - 34, up + high - 18, 68, 26);
  write(pen, `${String(Math.round(value) % 360).padStart(3, "0")}°`, middle + 4, up + high - 4, 19, WHITE, "center", 700);
  line(pen, WHITE, 2, [middle, up - 8], [middle, up + 6]);
}

function top(pen, flight) {
  const selected = flight.get("selected_altitude_ft");
  write(pen, flight.texts.get("callsign") || "-------", 18, 28, 24, WHITE, "left", 700);
  write(pen, `SQ ${flight.texts.get("squawk") || "----"}`, 150, 29, 16, GREY);
  write(pen, "SEL ALT", 590, 29, 13, GREY, "right");
  write(pen, selected === null ? "-----" : selected.toFixed(0), 680, 28, 21, selected === null ? AMBER : MAGENTA, "right", 700);
  write(pen, flight.clock().slice(11), 784, 28, 16, WHITE, "right");
}

function bottom(pen, flight) {
  let x = 18;
  for (const [label, name, unit] of [["GS", "groundspeed_kt", "kt"], ["TAS", "tas_kt", "kt"], ["TRK", "track_deg", "°"], ["GNSS", "altitude_geometric_ft", "ft"]]) {
    const value = flight.get(name), words = `${shown(value)} ${unit}`;
    write(pen, label, x, 546, 13, GREY);
    x += label.length * 8 + 8;
    write(pen, words, x, 545, 17, value === null ? AMBER : GREEN);
    x += words.length * 10.4 + 18;
  }
  const latitude = flight.get("latitude"), longitude = flight.get("longitude");
  const place = latitude === null || longitude === null ? "POS ---" : `${latitude >= 0 ? "N" : "S"}${Math.abs(latitude).toFixed(3)}° ${longitude >= 0 ? "E" : "W"}${Math.abs(longitude).toFixed(3)}°`;
  write(pen, place, 784, 545, 16, latitude === null ? AMBER : GREEN, "right");
  const alerts = [...flight.alerts.values()].slice(-ALERTS_SHOWN);
  let left = 18;
  for (const { kind, text } of alerts) {
    pen.font = font(15, 700);
    const wide = pen.measureText(kind).width + 18;
    if (left + wide > 784) break;
    pen.fillStyle = kind === "LEVEL OFF" ? CYAN : AMBER;
    pen.fillRect(left, 568, wide, 24);
    write(pen, kind, left + 9, 581, 15, "#05070a", "left", 700);
    left += wide + 10;
    if (alerts.length === 1) write(pen, text.slice(0, 60), left, 581, 14, WHITE);
  }
}
