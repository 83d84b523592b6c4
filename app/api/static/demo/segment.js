// Pictures on their way: each is asked for once for every choice of options, two at a time.

import { Refusal } from "/console/api.js";
import { language, t } from "/console/i18n.js";
import { server } from "/console/server.js";
import { serves } from "./models.js";
import { readOptions } from "./options.js";
import { askPatiently } from "./patience.js";

const AT_ONCE = 2;
const EXTENSIONS = { "image/png": "png", "image/webp": "webp", "image/jpeg": "jpg" };

// One picture: its file, what was asked for last and what came of it. `state` is waiting, asking,
// done or refused.
export class Item {
  constructor(file, sample) {
    this.file = file;
    this.sample = sample;
    this.name = file.name || t("viewer.before");
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
}

const refused = (code, values = {}) => new Refusal({ code, detail: t(`detail.${code}`, values), language: language(), ...values });

// What need not be sent: the server would refuse it, or the browser cannot.
async function check(file) {
  const limit = server().info?.limits.segment_max_bytes;
  if (limit && file.size > limit) throw refused("file_too_large", { name: file.name, received: file.size, limit });
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

async function askFor(item, changed) {
  const options = readOptions();
  item.state = "asking";
  item.asked = options;
  const mine = (item.abort = new AbortController());
  changed(item);
  try {
    for (const file of [item.file, options.background]) if (file) await check(file);
    const body = new FormData();
    body.set("file", item.file);
    if (options.background) body.set("bg_image", options.background);
    const address = `/segment?${new URLSearchParams(options.query)}`;
    const waiting = (what, seconds, group) => {
      if (mine.signal.aborted) return;
      item.waits = what && { what, seconds, group };
      changed(item);
    };
    const made = { method: "POST", body, signal: mine.signal };
    const response = await askPatiently(address, made, options.wanted, waiting);
    const blob = await response.blob();
    if (mine.signal.aborted) return;
    Object.assign(item, { state: "done", response, blob, after: URL.createObjectURL(blob) });
    item.save = saveName(item, options.output);
    item.request = requestOf(item, options);
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    Object.assign(item, { state: "refused", error });
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
