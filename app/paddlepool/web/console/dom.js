// Elements, made and found. Text only ever enters a page as text: nothing here reads markup.

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (property in made) made[property] = value;
    else made.setAttribute(property, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// The store of this tab or of this browser; a browser that keeps nothing is no reason to fail.
export function remembered(store, name) {
  try {
    return window[store].getItem(name) ?? "";
  } catch {
    return "";
  }
}

export function remember(store, name, value) {
  try {
    if (value) window[store].setItem(name, value);
    else window[store].removeItem(name);
  } catch {
    // It lasts until the page is left.
  }
}
