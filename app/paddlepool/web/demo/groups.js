// Which model and which instance group answer: the default ones, or those that are chosen here.

import { $, element } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";
import { onServer, server } from "/console/server.js";

// The server's words for a group that nobody has asked for yet, and for one that is on its way.
const COMES = ["not started", "restarting"];

export const fails = (group) => !group.ready && !COMES.includes(group.reason);

function nameOf(group) {
  if (group.default) return t("group.default", { name: group.name });
  if (fails(group)) return t("group.fails", { name: group.name });
  return group.ready ? group.name : t("group.starts", { name: group.name });
}

// The server's reason begins with what the page says in its own language.
export const whyOf = ({ reason }) => reason.replace(/^cannot start: /, "");

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  select.value = options.some(([value]) => value === before) ? before : "";
}

// For the selects `${task}-model` and `${task}-predictor`, and the list of what cannot start.
export function offerGroups(task) {
  const [models, groups, note] = [$(`${task}-model`), $(`${task}-predictor`), $(`${task}-groups`)];

  function render() {
    const { info } = server();
    if (!info) return;
    const ready = info.models.filter((model) => model.task === task && model.state === "READY");
    const standard = info.default_models[task];
    const others = ready.map((model) => `${model.name}@${model.version}`);
    fill(models, [["", standard ? t("model.default", { name: standard }) : "—"], ...others.map((name) => [name, name])]);
    const model = ready.find((each) => (models.value ? `${each.name}@${each.version}` === models.value : each.name === standard));
    const known = model?.predictors ?? [];
    // The default one is not named: the server may choose another while the page is open.
    const [first] = known.filter((group) => group.default);
    fill(groups, [["", first ? nameOf(first) : "—"], ...known.filter((group) => !group.default).map((group) => [group.name, nameOf(group)])]);
    const failing = known.filter(fails);
    note.replaceChildren(
      ...failing.map((group) =>
        element("p", {}, element("b", {}, nameOf(group)), " · ", element("span", { lang: "en" }, whyOf(group))),
      ),
    );
  }

  models.addEventListener("change", render);
  onLanguage(render);
  onServer(render);
}

// What is chosen for a task: {task, model, group}, each empty for the default.
export const chosenFor = (task) => ({ task, model: $(`${task}-model`).value, group: $(`${task}-predictor`).value });
