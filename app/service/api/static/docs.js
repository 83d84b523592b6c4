// Each operation with one row for all its errors: thirteen rows of one form would hide the reply.
function fold(responses) {
  const errors = Object.keys(responses).filter((status) => status >= "400").sort();
  const { content } = responses[errors[0]];
  for (const status of errors) delete responses[status];
  const description = `An error: ${errors.join(", ")}. Its \`code\` says which one; [all codes, and when each comes](/docs/errors).`;
  responses.default = { description, content };
}

async function start() {
  const spec = await (await fetch("/openapi.json")).json();
  for (const path of Object.values(spec.paths)) {
    for (const operation of Object.values(path)) fold(operation.responses);
  }
  window.ui = SwaggerUIBundle({
    spec,
    dom_id: "#swagger-ui",
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    defaultModelsExpandDepth: 0,
    layout: "BaseLayout",
    presets: [SwaggerUIBundle.presets.apis],
  });
}

start();

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", colour);
colour();
