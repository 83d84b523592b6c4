window.ui = SwaggerUIBundle({
  url: "/docs/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  displayRequestDuration: true,
  tryItOutEnabled: true,
  defaultModelsExpandDepth: 0,
  layout: "BaseLayout",
  presets: [SwaggerUIBundle.presets.apis],
});

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", colour);
colour();
