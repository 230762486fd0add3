// Charts: uPlot in the colours of the page, as wide as their place.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { duration } from "./format.js";

const COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A chart that is drawn anew in other colours when the theme changes, and follows the width of its place.
class Chart {
  constructor(place, height, options) {
    this.place = place;
    this.height = height;
    this.options = options;
    this.data = null;
    this.plot = null;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(place);
    this.rethemed = () => this.draw();
    addEventListener("themed", this.rethemed);
  }

  set(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.draw();
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    if (!this.data || !this.place.clientWidth) return;
    this.plot = new uPlot({ width: this.place.clientWidth, height: this.height, ...this.options() }, this.data, this.place);
  }

  resize() {
    if (!this.plot) return this.draw();
    if (this.place.clientWidth && this.place.clientWidth !== this.plot.width) {
      this.plot.setSize({ width: this.place.clientWidth, height: this.height });
    }
  }

  close() {
    removeEventListener("themed", this.rethemed);
    this.observer.disconnect();
    this.plot?.destroy();
  }
}

const axis = more => ({
  stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 4 },
  font: "11px system-ui, sans-serif", ...more,
});

const times = [
  [3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1], [0.001, "{ss}.{fff}", null, null, null, null, null, null, 1],
];

// Lines over time. series: [{label, value: figure => text}]
export function lines(place, height, series, filled = false) {
  return new Chart(place, height, () => ({
    legend: { show: series.length > 1, live: false }, cursor: { points: { size: 5 }, drag: { x: false, y: false } },
    axes: [axis({ values: times, space: 70, size: 30, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600] }),
      axis({ size: 58, values: (_, all) => all.map(one => series[0].value(one)) })],
    scales: { y: { range: (_, low, high) => series[0].free ? spread(low, high) : [0, high > 0 ? high * 1.1 : 1] } },
    series: [{}, ...series.map((one, at) => ({
      label: one.label, width: 1.6, stroke: colour(COLOURS[at % COLOURS.length]), points: { show: false }, spanGaps: false,
      fill: filled && at === 0 ? colour("--fill") : undefined,
    }))],
  }));
}

function spread(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

// How many messages came how late: a bar for each bucket. bounds: what each is below of, in ns.
export function histogram(place, height, bounds) {
  return new Chart(place, height, () => ({
    legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false, range: (_, low, high) => [low - 0.6, high + 0.6] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [axis({ incrs: [1, 2, 4, 6, 8, 10, 16, 20, 30, 40, 60], space: 52, size: 30, values: (_, all) => all.map(one => Number.isInteger(one) && bounds[one] !== undefined ? duration(bounds[one] / 1e9) : "") }),
      axis({ size: 48 })],
    series: [{}, { stroke: colour("--series-1"), fill: colour("--fill"), width: 1, paths: uPlot.paths.bars({ size: [0.9, 40] }), points: { show: false } }],
  }));
}

// A rate as a line of a few pixels, without axes. `values`: the newest last.
export function spark(canvas, values) {
  const ratio = devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight;
  if (!wide) return;
  if (canvas.width !== wide * ratio) { canvas.width = wide * ratio; canvas.height = high * ratio; }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, wide, high);
  const top = Math.max(...values, 1e-9);
  pen.beginPath();
  values.forEach((value, at) => {
    const x = wide - (values.length - 1 - at) * wide / (SPARK - 1), y = high - 1.5 - (high - 3) * (value || 0) / top;
    at ? pen.lineTo(x, y) : pen.moveTo(x, y);
  });
  pen.strokeStyle = colour("--series-1");
  pen.lineWidth = 1.4;
  pen.stroke();
}

export const SPARK = 40;
export const KEPT = 900; // points of a chart, one a second

// Columns that only grow at the end and never beyond KEPT.
export function push(columns, row, kept = KEPT) {
  columns.forEach((column, at) => {
    column.push(row[at]);
    if (column.length > kept) column.splice(0, column.length - kept);
  });
}
