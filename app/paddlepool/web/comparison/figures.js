// Numbers as people read them, and the colour of each group.

import { numberText } from "/console/i18n.js";

export const NONE = "–";

// Three digits; what is null is not known.
export function digits(value, most = 3) {
  return value === null || value === undefined ? NONE : numberText(value, { maximumSignificantDigits: most });
}

export function small(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0 || Math.abs(value) >= 1e-5) return digits(value, 2);
  return value.toExponential(1).replaceAll("-", "\u2011"); // no line break before the exponent
}

export const milliseconds = (seconds) => (seconds === null ? NONE : `${digits(1000 * seconds)} ms`);
export const two = (value) => numberText(value, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
export const times = (value) => `${two(value)} ×`;
// How many times as fast as the first group, with the 99 % interval: from runs in turns, or nothing.
export const speed = ({ gain, gain_low: low, gain_high: high }) => `${times(gain)} (${two(low)} – ${two(high)})`;
export const percent = (share) => (share === null ? NONE : numberText(share, { style: "percent", maximumFractionDigits: 1 }));
export const memory = (bytes) => (bytes ? `${digits(bytes / 1e6)} MB` : NONE);

// Colours by the group's place in config.toml, so that each keeps its own; readable in both schemes.
const LIGHT = ["#0b5cad", "#b45309", "#475569", "#7c2d12", "#15803d", "#c026d3", "#0e7490", "#6d28d9", "#4d7c0f", "#dc2626", "#be185d", "#1e3a8a", "#0f766e"];
const DARK = ["#7cb8ff", "#f0b050", "#a5b1bf", "#d9a68a", "#6fd49b", "#f08bf7", "#5fd4e8", "#b9a0ff", "#b4dc62", "#ff8a80", "#ff8fbd", "#93a8ff", "#5eead4"];
export const scheme = matchMedia("(prefers-color-scheme: dark)");

export const colourOf = (place) => (scheme.matches ? DARK : LIGHT)[place % LIGHT.length];

export const numberOf = (value) => digits(value, value >= 1000 ? 6 : 3);

// Numbers of a tensor, which may be of any size.
export function scientific(value) {
  const size = Math.abs(value);
  return size >= 1e6 && size < Infinity || (size > 0 && size < 1e-4) ? value.toExponential(2) : digits(value, 4);
}
