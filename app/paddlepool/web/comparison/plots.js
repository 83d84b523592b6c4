// Charts by uPlot: histograms over the server's own buckets, and lines of the last hour.

import { digits, scheme } from "./figures.js";

const { uPlot } = window;
const drawn = new Set(); // every live chart, to size and colour it anew

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

function axis(more) {
  return { stroke: style("--soft"), font: FONT, grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1, size: 4 }, ...more };
}

// A chart in `box` that follows the box's width and the colour scheme. `options(colours)` are
// uPlot's, `show(data)` draws; what is drawn anew when `shape` changes keeps the newest data.
export class Plot {
  constructor(box, { height }) {
    this.box = box;
    this.height = height;
    this.shape = "";
    drawn.add(this);
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(box);
  }

  // `shape` is a word for everything in the options: when it changes the chart is built anew.
  show(shape, options, data) {
    this.latest = { options, data };
    if (this.chart && this.shape === shape) {
      this.chart.setData(data);
      return;
    }
    this.shape = shape;
    this.build();
  }

  build() {
    this.chart?.destroy();
    this.chart = null;
    if (!this.latest || !this.box.clientWidth) return;
    const { options, data } = this.latest;
    this.chart = new uPlot({ ...options(), width: this.box.clientWidth, height: this.height, legend: { show: false }, padding: [10, 18, 0, 0] }, data, this.box);
  }

  clear() {
    this.latest = null;
    this.chart?.destroy();
    this.chart = null;
  }

  resize() {
    const width = this.box.clientWidth;
    if (!this.chart) this.build();
    else if (width && width !== this.chart.width) this.chart.setSize({ width, height: this.height });
  }

  canvas() {
    return this.chart?.ctx.canvas ?? null;
  }

  close() {
    this.clear();
    this.watch.disconnect();
    drawn.delete(this);
  }
}

scheme.addEventListener("change", () => {
  for (const plot of drawn) plot.build();
});

// Buckets lie on a scale of their own: bucket i between i and i + 1, so that each factor of 1.33
// is as wide as any other.
export function bucketsShown(groups) {
  const used = groups.flatMap(({ buckets }) => buckets.flatMap((count, place) => (count ? [place] : [])));
  if (!used.length) return null;
  const last = groups[0].buckets.length - 1;
  return [Math.max(0, Math.min(...used) - 2), Math.min(last, Math.max(...used) + 2)];
}

// Where a time lies on that scale.
export function placeOf(bounds, seconds) {
  const above = bounds.findIndex((bound) => seconds <= bound);
  if (above < 0) return bounds.length;
  const lower = above ? bounds[above - 1] : 0;
  return above + (seconds - lower) / (bounds[above] - lower);
}

function bucketAxis(bounds, [from, to], space) {
  // A label at a whole number is the bound between two buckets.
  return axis({
    size: 30,
    space,
    splits: () => Array.from({ length: to - from + 1 }, (_, step) => from + step),
    values: (chart, splits) => {
      const every = Math.ceil((splits.length * space) / (chart.bbox.width / devicePixelRatio));
      return splits.map((place, index) => (index % every || !place || place > bounds.length ? "" : `${digits(1000 * bounds[place - 1], 2)}`));
    },
    grid: { show: false },
  });
}

const translucent = (colour) => `${colour}40`;

const scaleX = (shown) => ({ time: false, range: [shown[0], shown[1] + 1] });

// One group's histogram, with lines at p50 and p99.
export function showHistogram(plot, { bounds, shown, group, colour, marks }) {
  const places = Array.from({ length: shown[1] - shown[0] + 1 }, (_, step) => shown[0] + step);
  const options = () => ({
    cursor: { show: false },
    scales: { x: scaleX(shown), y: { range: (chart, low, high) => [0, Math.max(1, high) * 1.3] } },
    axes: [bucketAxis(bounds, shown, 42), axis({ size: 38, space: 36, values: (chart, splits) => splits.map((value) => (Number.isInteger(value) ? digits(value) : "")) })],
    series: [{}, { stroke: colour(), fill: translucent(colour()), width: 1, points: { show: false }, paths: uPlot.paths.bars({ size: [0.92], align: 1 }) }],
    hooks: { draw: [(chart) => drawMarks(chart, marks())] },
  });
  plot.show(JSON.stringify([shown, colour()]), options, [places, places.map((place) => group.buckets[place])]);
}

function drawMarks(chart, marks) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillStyle = ctx.strokeStyle = style("--ink");
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.textAlign = "left"; // the axes leave their own
  ctx.textBaseline = "alphabetic";
  let free = -Infinity;
  for (const { place, label } of marks) {
    const x = Math.round(chart.valToPos(place, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const [width, gap] = [ctx.measureText(label).width, 3 * devicePixelRatio];
    const left = x + gap + width > chart.width * devicePixelRatio ? x - gap - width : x + gap;
    if (left > free) {
      ctx.fillText(label, left, bbox.top + 10 * devicePixelRatio);
      free = left + width + gap;
    }
  }
  ctx.restore();
}

// Every group's histogram in one, as shares of its own runs. `groups` are {name, buckets, runs, colour()}.
export function showOverlay(plot, { bounds, shown, groups, dark }) {
  const places = Array.from({ length: shown[1] - shown[0] + 2 }, (_, step) => shown[0] + step);
  const options = () => ({
    cursor: { y: false, points: { show: false } },
    scales: { x: scaleX(shown), y: { range: (chart, low, high) => [0, Math.max(1, high) * 1.08] } },
    axes: [bucketAxis(bounds, shown, 44), axis({ size: 48, values: (chart, splits) => splits.map((value) => `${value} %`) })],
    series: [{}, ...groups.map(({ colour }) => ({ stroke: colour(), fill: translucent(colour()), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }))],
  });
  const shares = groups.map(({ buckets, runs }) => places.map((place) => (100 * (buckets[place] ?? 0)) / runs));
  plot.show(JSON.stringify([shown, dark, groups.map(({ name }) => name)]), options, [places, ...shares]);
}

// A figure by the number of requests, its limit as a dashed line and its interval as a band. The
// first values of a mean vary most: the scale is that of the second half, and what exceeds it is cut.
// Without a limit, the scale begins at 0.
export function showTrend(plot, { places, values, low, high, limit, text, dark, from, to }) {
  const late = [values, low, high].flatMap((row) => row.slice(row.length >> 1));
  const heights = [...late.filter((value) => value !== null), limit ?? 0];
  const [least, most] = [Math.min(...heights), Math.max(...heights)];
  const room = (most - least) / 10 || 0.1 * Math.abs(most) || 1;
  plot.range = [Math.max(from, least - room), Math.min(to, most + room)];
  const none = { stroke: null, width: 0, points: { show: false } };
  const options = () => ({
    cursor: { y: false },
    scales: { x: { time: false, range: (chart, first, last) => [0, last] }, y: { range: () => plot.range } },
    axes: [axis({ size: 30, space: 60 }), axis({ size: 54, space: 34, values: (chart, splits) => splits.map(text) })],
    series: [{}, { stroke: style("--accent"), width: 2 }, { ...none, stroke: style("--bad"), width: 1.5, dash: [6, 5] }, none, none],
    bands: [{ series: [4, 3], fill: translucent(style("--accent")) }],
  });
  plot.show(String(dark), options, [places, values, places.map(() => limit), low, high]);
}

// Lines over the last hour. `series` are {name, colour(), values}; `events` are {at, label}.
export function showHour(plot, { seconds, series, range, dark, unit, events }) {
  plot.range = range;
  plot.events = events;
  const options = () => ({
    cursor: { y: false },
    scales: { x: { range: () => plot.range }, y: { range: (chart, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: [
      axis({ size: 30, space: 60, values: (chart, splits) => splits.map((at) => new Date(1000 * at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" })) }),
      axis({ size: 48, values: (chart, splits) => splits.map((value) => digits(value)) }),
    ],
    series: [{}, ...series.map(({ colour }) => ({ stroke: colour(), width: 2, points: { show: true, size: 4, fill: colour() } }))],
    hooks: { draw: [(chart) => drawMarks(chart, plot.events.map(({ at, label }) => ({ place: at, label })))] },
  });
  plot.show(JSON.stringify([dark, unit, series.map(({ name }) => name)]), options, [seconds, ...series.map(({ values }) => values)]);
}
