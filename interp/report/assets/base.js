// Elements, numbers and controls: what every view is made of. No text from a result ever becomes markup.

const views = {}; // by kind: async (mount, data) -> {json(), csv()} of what is shown

/** Make an element: h("p", {class: "note", onclick: f, "aria-label": "..."}, "text", child, ...). */
function h(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "rect", "text", "g", "polyline"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, to]) => element.style.setProperty(key, to));
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A number as people read it in a column: .66, 12.3, 1.2e-5. */
function show(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 10 ** -digits || size >= 1e6)) return value.toExponential(1).replace("e+", "e").replace("-", "−").replace("e−", "e-");
  return value.toFixed(size >= 100 ? Math.max(0, digits - 2) : size >= 10 ? Math.max(0, digits - 1) : digits).replace("-", "−");
}

/** A number with so many decimals, whatever its size: what aligns in a column. */
const fixed = (value, decimals) => (value === null || value === undefined ? "–" : (Math.abs(value) < 0.5 * 10 ** -decimals ? 0 : value).toFixed(decimals).replace("-", "−"));

/** A probability: .663, <.001 for what would round to nothing, 1 for what would round to 1. */
function probability(p, digits = 3) {
  if (p === null || p === undefined) return "–";
  if (p > 0 && p < 0.5 * 10 ** -digits) return "<." + "0".repeat(digits - 1) + "1";
  if (p === 0 || p === 1) return String(p);
  return p.toFixed(digits).replace(/^(-?)0\./, "$1.").replace("-", "−");
}

const signed = (value, decimals = 3) => (value > 0.5 * 10 ** -decimals ? "+" : "") + fixed(value, decimals);

/** One of several, as buttons side by side; `pick` is called with the value. */
function segmented(label, options, value, pick) {
  const group = h("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  const buttons = options.map(([key, text]) =>
    h("button", { type: "button", role: "radio", "data-value": key, onclick: () => choose(key, true) }, text));
  function choose(key, tell) {
    buttons.forEach((button, i) => {
      const on = options[i][0] === key;
      button.setAttribute("aria-checked", on);
      button.tabIndex = on ? 0 : -1;
    });
    if (tell) pick(key);
  }
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    next.focus();
    choose(next.dataset.value, true);
  });
  group.append(...buttons);
  choose(value, false);
  return { element: group, set: (key) => choose(key, false) };
}

/** A labelled list to choose from. */
function choice(label, options, value, pick) {
  const list = h("select", { "aria-label": label, onchange: () => pick(list.value) },
    options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));
  return h("label", { class: "field" }, h("span", {}, label), list);
}

/** A labelled slider with its value beside it; `text` says what a position means. */
function slider(label, { min, max, step = 1, value, text }, move) {
  const out = h("output", {}, text(value));
  const range = h("input", { type: "range", min, max, step, value, "aria-label": label, "aria-valuetext": text(value) });
  function set(to, tell) {
    range.value = to;
    out.textContent = text(Number(range.value));
    range.setAttribute("aria-valuetext", out.textContent);
    if (tell) move(Number(range.value));
  }
  range.addEventListener("input", () => set(range.value, true));
  const element = h("label", { class: "field slider" }, h("span", {}, label), range, out);
  return { element, set: (to) => set(to, false), range, text: () => out.textContent };
}

/**
 * Call `draw` when the theme changes. The page tells every element that is `data-themed`; as the listener lies on the
 * element, it goes with it.
 */
function themed(element, draw) {
  element.dataset.themed = "";
  element.addEventListener("themechange", draw);
}

/** Call `draw` now, and again when the theme or the width of `element` changes. */
function redrawn(element, draw) {
  let width = -1;
  new ResizeObserver(() => {
    if (element.clientWidth === width || !element.isConnected) return;
    width = element.clientWidth;
    draw();
  }).observe(element);
  themed(element, draw);
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const range = (n) => Array.from({ length: n }, (_, i) => i);

/** The largest magnitude of any number of values; what is missing counts as 0. */
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
