// A card that answers one picture: how the picture comes in and is sent, and what is said meanwhile.

import { keyEvents, Refusal } from "/console/api.js";
import { $ } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { codeBox } from "./codebox.js";
import { chosenFor, offerGroups } from "./groups.js";
import { offerSamples, receive } from "./intake.js";
import { askPatiently } from "./patience.js";
import { showTiming } from "./timing.js";

// The card of the task, an element with the task's name as id; other ids begin with it. `show(reply)`
// shows the JSON of a reply; null clears it. `taken(file)` hears of each picture. Returns {accept,
// clear}: accept(files) takes a picture.
export function startCard(task, samples, show, taken = () => {}) {
  const part = (name) => $(`${task}-${name}`);
  const showCode = codeBox(part("code"));
  let picture = null; // {file, sample, address}
  let shown = null; // {reply, response}
  let waits = null;
  let abort = new AbortController();

  function render() {
    part("waiting").hidden = !waits;
    if (waits) part("waiting").textContent = t(`waiting.${waits.what === "working" ? task : waits.what}`, waits);
    part("frame").setAttribute("aria-busy", String(Boolean(waits)));
    part("result").hidden = !shown;
    show(shown?.reply ?? null);
    if (shown) showTiming(part("timing"), shown.response);
  }

  function settle(result) {
    shown = result;
    waits = null;
    render();
  }

  async function send() {
    if (!picture) return;
    abort.abort();
    const { signal } = (abort = new AbortController());
    hideRefusal(part("refusal"));
    const { file, sample } = picture;
    const wanted = chosenFor(task);
    const query = Object.entries({ model: wanted.model, predictor: wanted.group }).filter(([, value]) => value);
    const body = new FormData();
    body.set("file", file);
    try {
      const response = await askPatiently(`/${task}?${new URLSearchParams(query)}`, { method: "POST", body, signal }, wanted, (what, seconds, group) => {
        if (signal.aborted) return;
        waits = what && { what, seconds, group };
        render();
      });
      const reply = await response.json();
      if (signal.aborted) return;
      settle({ reply, response });
      showCode({ path: `/${task}`, query, files: [["file", file.name]], fetchFirst: sample });
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refusal)) throw error;
      settle(null);
      showRefusal(part("refusal"), error, { more: error.reason, of: file.name, again: send });
    }
  }

  function clear() {
    abort.abort();
    if (picture) URL.revokeObjectURL(picture.address);
    picture = null;
    hideRefusal(part("refusal"));
    part("note").textContent = "";
    part("picture").hidden = true;
    part("empty").hidden = false;
    settle(null);
  }

  function accept([file], { sample } = {}) {
    if (!file) return;
    clear();
    picture = { file, sample, address: URL.createObjectURL(file) };
    part("empty").hidden = true;
    Object.assign(part("picture"), { src: picture.address, alt: file.name, hidden: false });
    taken(file);
    send();
  }

  part("picture").addEventListener("error", () => {
    part("picture").hidden = true;
    part("note").textContent = t("viewer.hidden", { name: picture.file.name });
  });
  part("file").addEventListener("change", () => {
    accept(part("file").files);
    part("file").value = ""; // the same file can be chosen again
  });
  for (const name of ["model", "predictor"]) part(name).addEventListener("change", send);
  keyEvents.addEventListener("changed", () => !shown && send());
  receive(task, accept);
  offerSamples(`${task}-samples`, samples, accept, part("refusal"));
  offerGroups(task);
  onLanguage(render);
  return { accept, clear };
}
