// What is shown, as files: JSON as the server tells it, CSV for a spreadsheet, PNG for a slide.

import { t } from "/console/i18n.js";
import { charts, colourIn } from "./charts.js";
import { configurationOf } from "./cards.js";
import { element } from "/console/dom.js";
import { state } from "./state.js";

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function fileName(answer, model, kind) {
  const at = new Date(1000 * answer.now).toISOString().slice(0, 19).replaceAll(":", "");
  return `paddlepool-${model.name}-${at}.${kind}`;
}

// A cell that begins like a formula would be run as one by a spreadsheet.
export function cell(value) {
  if (value === null || value === undefined) return "";
  const text = String(value);
  const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

export function asJson(answer, model) {
  const history = answer.history.filter((each) => each.model === model.name && each.version === model.version);
  const { key, ...told } = model;
  return JSON.stringify({ ...answer, models: [told], history }, null, 1);
}

export function asCsv(answer, model) {
  const heads = ["model", "version", "group", "configuration", "threads", "default", "ready", "effective", "proof", "reason", "window_seconds", "runs", "runs_per_second", "p50_seconds", "p95_seconds", "p99_seconds", "times_as_fast", "times_as_fast_low", "times_as_fast_high", "resident_bytes", "replays", "same_bits", "drift_p50", "drift_p99", "agreement"];
  const measured = new Map(model.choice?.candidates.map((each) => [each.group, each]));
  const rows = model.groups.map((group) => [
    model.name, model.version, group.name, configurationOf(group), group.threads, group.default, group.ready, group.effective, group.proof, group.reason,
    answer.window_seconds, group.runs, group.rate, group.times.p50, group.times.p95, group.times.p99, ...["gain", "gain_low", "gain_high"].map((name) => measured.get(group.name)?.[name]),
    group.resident_bytes, group.replays.count, group.replays.same_bits, group.replays.p50, group.replays.p99, group.replays.agreement,
  ]);
  return csv([heads, ...rows]);
}

export function historyCsv(answer, model) {
  const rows = answer.history
    .filter((each) => each.model === model.name && each.version === model.version)
    .flatMap((each) =>
      each.interval.map((number, place) => {
        const ended = answer.began + (number + 1) * answer.interval_seconds;
        return [new Date(1000 * ended).toISOString(), each.model, each.version, each.group, each.runs[place], each.p50[place], each.p95[place], each.p99[place]];
      }),
    );
  return csv([["interval_ended", "model", "version", "group", "runs", "p50_seconds", "p95_seconds", "p99_seconds"], ...rows]);
}

// Both charts below a heading that says of what, when and which colour is whose.
async function asPng(answer, model) {
  const scale = devicePixelRatio;
  const plots = charts().map((plot) => plot.canvas()).filter(Boolean);
  const line = 22 * scale;
  const edge = 20 * scale;
  const width = 2 * edge + Math.max(640 * scale, ...plots.map((each) => each.width));
  const canvas = element("canvas", { width, height: 2 * edge + 3 * line + plots.reduce((sum, each) => sum + each.height + 2 * line, 0) });
  const pen = canvas.getContext("2d");
  const look = getComputedStyle(document.documentElement);
  const colour = (name) => look.getPropertyValue(name).trim();
  pen.fillStyle = colour("--paper");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const write = (text, x, y, { size = 13, weight = 400, fill = "--ink" } = {}) => {
    pen.font = `${weight} ${size * scale}px system-ui, sans-serif`;
    pen.fillStyle = fill.startsWith("--") ? colour(fill) : fill;
    pen.fillText(text, x, y);
    return x + pen.measureText(text).width;
  };
  let y = edge + line;
  write(`${model.name}@${model.version}: ${t("plots")}`, edge, y, { size: 18, weight: 600 });
  y += line;
  write(`${new Date(1000 * answer.now).toLocaleString()} · ${t("window")} ${t(`window.${state.window}`)} · ${location.host}`, edge, y, { fill: "--soft" });
  y += line;
  let x = edge;
  for (const { name } of model.groups.filter((group) => group.runs && !state.hidden.has(group.name))) {
    x = write("● ", x, y, { fill: colourIn(model)(name) });
    x = write(`${name}   `, x, y);
  }
  const titles = [t("overlay"), `${t("hour")}: ${t(`figure.${state.figure}`)}`];
  charts().forEach((plot, place) => {
    if (!plot.canvas()) return;
    y += 1.5 * line;
    write(titles[place], edge, y, { weight: 600 });
    y += line / 2;
    pen.drawImage(plot.canvas(), edge, y);
    y += plot.canvas().height;
  });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

const KINDS = {
  json: (answer, model) => [new Blob([asJson(answer, model)], { type: "application/json" }), "json"],
  csv: (answer, model) => [new Blob(["\ufeff", asCsv(answer, model)], { type: "text/csv" }), "csv"],
  history: (answer, model) => [new Blob(["\ufeff", historyCsv(answer, model)], { type: "text/csv" }), "hour.csv"],
  png: async (answer, model) => [await asPng(answer, model), "png"],
};

export async function exportAs(kind, answer, model) {
  const [blob, ending] = await KINDS[kind](answer, model);
  save(blob, fileName(answer, model, ending));
}
