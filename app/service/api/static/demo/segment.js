// Pictures on their way: each is cut out once for every choice of options but the background, which is
// put behind it here; two at a time.

import { Refusal } from "/console/api.js";
import { language, t } from "/console/i18n.js";
import { server } from "/console/server.js";
import { compose } from "./compose.js";
import { serves } from "./models.js";
import { readOptions } from "./options.js";
import { askPatiently } from "./patience.js";

const AT_ONCE = 2;
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
    for (const file of [item.file, options.background]) if (file) await check(file);
    const { response, blob, composed = false } = await resultOf(item, options, signal, changed);
    if (signal.aborted) return;
    Object.assign(item, { state: "done", response, blob, composed, after: URL.createObjectURL(blob) });
    item.save = saveName(item, options.output);
    item.request = requestOf(item, options);
  } catch (error) {
    if (signal.aborted) return;
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
