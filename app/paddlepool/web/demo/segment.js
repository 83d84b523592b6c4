// Pictures on their way: each is cut out once for every choice of options but the background, which is
// put behind it here; two at a time.

import { Refusal } from "/console/api.js";
import { language, numberText, t } from "/console/i18n.js";
import { refresh, server } from "/console/server.js";
import { compose } from "./compose.js";
import { serves } from "./models.js";
import { readOptions } from "./options.js";
import { askPatiently } from "./patience.js";
import { shrunk } from "./shrink.js";

const AT_ONCE = 2;
const AWAY = ["unreachable", "shutting_down"];
const EXTENSIONS = { "image/png": "png", "image/webp": "webp", "image/jpeg": "jpg" };

// One picture: its file, what was asked for last and what came of it. `state` is waiting, asking,
// done or refused; `cutout` is the newest cut-out, kept for other backgrounds.
export class Item {
  constructor(file, sample) {
    this.file = file;
    this.sample = sample;
    this.name = file.name || t("viewer.before");
    this.cutout = null;
    this.before = URL.createObjectURL(file);
    this.clear();
  }

  clear() {
    this.abort?.abort();
    if (this.after) URL.revokeObjectURL(this.after);
    Object.assign(this, { state: "waiting", after: "", blob: null, response: null, error: null, abort: null, asked: null, waits: null });
  }

  drop() {
    this.clear();
    URL.revokeObjectURL(this.before);
  }

  replace(file) {
    this.drop();
    Object.assign(this, { file, name: file.name, sample: undefined, cutout: null, before: URL.createObjectURL(file) });
  }

  // Whether the server was not there, and the picture can be sent again when it is back.
  get lost() {
    return this.state === "refused" && AWAY.includes(this.error.code);
  }
}

const refused = (code, values = {}) => new Refusal({ code, detail: t(`detail.${code}`, values), language: language(), ...values });

const tenths = (value, round) => numberText(round(value / 1e5) / 10);
const megabytes = (bytes, round) => `${tenths(bytes, round)} MB`;
const megapixels = (pixels, round) => t("megapixels", { count: tenths(pixels, round) });
const sides = (pixels) => `${numberText(pixels)} px`;

function tooLarge(code, name, figure, received, limit) {
  const detail = t("detail.too_large", { name, received: figure(received, Math.ceil), limit: figure(limit, Math.floor) });
  return Object.assign(new Refusal({ code, detail, language: language() }), { shrinks: true });
}

// A refusal for the size of a picture, in a person's words. The server's own are for programs.
function explained(error, item) {
  const { code, detail = "", limit, received } = error.problem;
  if (detail.startsWith("bg_image")) return error;
  if (code === "output_too_large") return refused(code);
  if (code === "file_too_large" && limit) return tooLarge(code, item.name, megabytes, received ?? item.file.size, limit);
  if (code !== "resolution_too_high" || typeof received !== "number") return error;
  return tooLarge(code, item.name, limit === server().info?.limits.image_max_side ? sides : megapixels, received, limit);
}

// Makes a picture small enough for the server; one that the browser cannot read is refused for good.
export async function makeSmaller(item, changed) {
  Object.assign(item, { state: "asking", error: null, waits: { what: "smaller" } });
  changed(item);
  try {
    item.replace(await shrunk(item.file, server().info.limits));
  } catch {
    Object.assign(item, { state: "refused", waits: null, error: refused("not_shrunk", { name: item.name }) });
  }
}

// What need not be sent: the server would refuse it, or the browser cannot.
async function check(file, item) {
  const limit = server().info?.limits.segment_max_bytes;
  if (limit && file.size > limit) {
    const error = tooLarge("file_too_large", file.name, megabytes, file.size, limit);
    throw Object.assign(error, { shrinks: file === item.file });
  }
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw refused("file_unread", { name: file.name });
  }
}

function saveName(item, output) {
  const stem = item.name.replace(/\.[^.]{1,5}$/, "") || item.name;
  return `${stem}-${output}.${EXTENSIONS[item.blob.type] ?? "png"}`;
}

// The request that was made, as code.js takes it.
function requestOf(item, options) {
  const files = [["file", item.name], ...(options.background ? [["bg_image", options.background.name]] : [])];
  return { path: "/segment", query: options.query, files, fetchFirst: item.sample, saveAs: item.save };
}

// {query, response, blob} of the server's answer.
async function answerOf(item, query, background, wanted, signal, changed) {
  const body = new FormData();
  body.set("file", item.file);
  if (background) body.set("bg_image", background);
  const waiting = (what, seconds, group) => {
    if (signal.aborted) return;
    item.waits = what && { what, seconds, group };
    changed(item);
  };
  const response = await askPatiently(`/segment?${new URLSearchParams(query)}`, { method: "POST", body, signal }, wanted, waiting);
  return { query: JSON.stringify(query), response, blob: await response.blob() };
}

async function resultOf(item, { query, background, wanted, cutout, backdrop }, signal, changed) {
  const asked = backdrop ? cutout : query;
  let answer = item.cutout?.query === JSON.stringify(asked) ? item.cutout : null;
  answer ??= await answerOf(item, asked, backdrop ? null : background, wanted, signal, changed);
  if (JSON.stringify(cutout) === answer.query) item.cutout = answer;
  if (!backdrop) return answer;
  try {
    return { response: answer.response, blob: await compose(answer.blob, item.file, backdrop), composed: true };
  } catch {
    // The server can read more kinds of pictures, and says what is wrong with others.
    return answerOf(item, query, background, wanted, signal, changed);
  }
}

async function askFor(item, changed) {
  const options = readOptions();
  item.state = "asking";
  item.asked = options;
  const { signal } = (item.abort = new AbortController());
  changed(item);
  try {
    for (const file of [item.file, options.background]) if (file) await check(file, item);
    const { response, blob, composed = false } = await resultOf(item, options, signal, changed);
    if (signal.aborted) return;
    Object.assign(item, { state: "done", response, blob, composed, after: URL.createObjectURL(blob) });
    item.save = saveName(item, options.output);
    item.request = requestOf(item, options);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    if (AWAY.includes(error.code)) await refresh(); // before the next picture is sent to nobody
    if (signal.aborted) return;
    Object.assign(item, { state: "refused", error: explained(error, item) });
  }
  changed(item);
}

// `changed(item)` runs whenever something about a picture has changed. Returns `more()`, which
// looks for pictures that wait, `first` before the others.
export function segmentQueue(items, changed) {
  let busy = 0;
  async function more(first) {
    if (!server().info || !serves("segment")) return; // no answer yet, or no key: it begins when there is one
    const waiting = items().filter((item) => item.state === "waiting");
    const next = waiting.includes(first) ? first : waiting[0];
    if (!next || busy >= AT_ONCE) return;
    busy += 1;
    try {
      const asked = askFor(next, changed); // it no longer waits, so that the next can be looked for
      more();
      await asked;
    } finally {
      busy -= 1;
      more();
    }
  }
  return more;
}
