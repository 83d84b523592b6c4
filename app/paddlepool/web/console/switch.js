// The button with the name of the other language.

import { $ } from "./dom.js";
import { language, onLanguage, setLanguage } from "./i18n.js";

const OTHER = { en: "zh", zh: "en" };
const NAMES = { en: "English", zh: "中文" };

// Call it once, before applyLanguage().
export function startSwitch() {
  $("language").addEventListener("click", () => setLanguage(OTHER[language()]));
  onLanguage(() => {
    const other = OTHER[language()];
    $("language").textContent = NAMES[other];
    $("language").lang = other;
  });
}
