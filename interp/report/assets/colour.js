// Colour scales: blue for amounts; for changes blue (down) to orange (up). Both are safe for colour-blind readers.

const SCALES = {
  light: {
    amount: ["#f3f6fa", "#cfe0f3", "#8db9e5", "#4384c7", "#174a8b"],
    change: ["#174a8b", "#5b97d3", "#bcd6ee", "#f4f4f2", "#f7cda4", "#dd8436", "#963f06"],
  },
  dark: {
    amount: ["#1a222c", "#1f3d5c", "#2d689e", "#62a4e0", "#d3e8ff"],
    change: ["#a9d2fb", "#4e92d2", "#264b70", "#20272f", "#69401c", "#d18137", "#ffd0a0"],
  },
};

const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** 256 colours of a scale as one flat array of bytes, made once per theme. */
const lookups = new Map();
function lookup(scale) {
  const name = (dark() ? "dark " : "light ") + scale;
  if (!lookups.has(name)) {
    const stops = SCALES[dark() ? "dark" : "light"][scale].map(channels);
    const table = new Uint8Array(768);
    for (let i = 0; i < 256; i++) {
      const at = (i / 255) * (stops.length - 1);
      const left = Math.min(Math.floor(at), stops.length - 2);
      for (let c = 0; c < 3; c++) table[3 * i + c] = stops[left][c] + (at - left) * (stops[left + 1][c] - stops[left][c]);
    }
    lookups.set(name, table);
  }
  return lookups.get(name);
}

/** The colour of `share`, 0 to 1, as [red, green, blue]. */
function rgb(scale, share) {
  const i = 3 * Math.round(255 * clamp(share, 0, 1));
  return lookup(scale).subarray(i, i + 3);
}

const css = (colour) => `rgb(${colour[0]} ${colour[1]} ${colour[2]})`;

function luminance(colour) {
  const [r, g, b] = [...colour].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever stands out more on a colour; one of the two always reaches 4.5 to 1. */
const inkOn = (colour) => (luminance(colour) > 0.179 ? "#000000" : "#ffffff");

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A strip that explains a scale: its colours between the texts of its two ends. */
function legend(scale, low, high, note) {
  const strip = h("span", { class: "strip" });
  const paint = () => {
    strip.style.background = `linear-gradient(to right, ${range(9).map((i) => css(rgb(scale, i / 8))).join(",")})`;
  };
  themed(strip, paint);
  paint();
  return h("p", { class: "legend" }, h("span", {}, low), strip, h("span", {}, high), note ? h("span", { class: "quiet" }, note) : null);
}
