// A request that waits for a model that is still loading, and says what is being waited for.

import { ask, Refusal } from "/console/api.js";
import { refresh, server } from "/console/server.js";
import { fails, whyOf } from "./groups.js";

const QUIET = 600; // milliseconds before anything is said
const AGAIN = 2; // seconds, where the server does not say when to ask again

function groupOf(info, { task, model, group }) {
  if (!info) return undefined;
  const name = (model || info.default_models[task] || "").split("@")[0];
  const served = info.models.find((each) => each.name === name && each.state === "READY");
  return served?.predictors?.find((each) => (group ? each.name === group : each.default));
}

// What is to be said of a refusal besides the server's words: why the group cannot start.
function reasonFor(error, wanted) {
  if (error.code !== "model_not_ready") return "";
  const found = groupOf(server().info, wanted);
  return found && fails(found) ? `${found.name}: ${whyOf(found)}` : "";
}

const sleep = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    });
  });

// As ask(). `wanted` is {task, model, group}, empty words for the defaults; `waiting(what, seconds)`
// is called each second with "working", "slow", "group" or "loading", and at the end with null.
// A Refusal that is thrown has `reason`, what /info knows more about it.
export async function askPatiently(address, options, wanted, waiting) {
  const began = performance.now();
  let loading = false;
  let chances = 2;
  const asked = () => groupOf(server().info, wanted);
  const say = () => {
    const seconds = Math.round((performance.now() - began) / 1000);
    const found = asked();
    const starting = found && !found.ready;
    waiting(loading ? "loading" : starting ? "group" : seconds > 1 ? "slow" : "working", seconds, found?.name);
  };
  let ticking = setTimeout(() => {
    say();
    ticking = setInterval(say, 1000);
  }, QUIET);
  try {
    for (;;) {
      const cold = asked()?.ready === false;
      try {
        return await ask(address, options);
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        if (error.code === "model_not_ready" || cold) await refresh();
        const models = server().info?.models ?? [];
        const comes = ["model_not_ready", "model_not_found"].includes(error.code);
        loading = comes && models.some((model) => model.state === "LOADING");
        // It may have become ready just after it was asked; a server that says both has to stop us.
        const found = asked();
        const ready = comes && found?.ready;
        // The request's time ended while its group was starting, which goes on without it.
        const starting = error.code === "deadline_exceeded" && cold && found && !fails(found);
        if (!loading && !starting && !(ready && chances-- > 0)) {
          error.reason = reasonFor(error, wanted);
          throw error;
        }
        await sleep(error.problem.retry_after ?? AGAIN, options.signal);
      }
    }
  } finally {
    clearTimeout(ticking);
    clearInterval(ticking);
    waiting(null);
  }
}
