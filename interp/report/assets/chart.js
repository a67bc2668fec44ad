// Line charts as SVG: few points, thin lines, the ends of the axes labelled.

/**
 * Lines over x = 0, 1, 2, ...: series {label, values, dashed, tone}. `at` gives the x to mark. Returns {element, mark(x)}.
 */
function lineChart(series, { label, height = 150, low = null, high = null, xText = String, yText = (y) => show(y, 2), pick = null }) {
  const holder = h("div", { class: "chart", role: "img", "aria-label": label });
  const n = Math.max(...series.map((one) => one.values.length));
  const finite = series.flatMap((one) => one.values).filter((value) => value !== null);
  const bottom = low ?? Math.min(...finite), top = high ?? Math.max(...finite);
  const pad = { left: 44, right: 12, top: 10, bottom: 22 };
  let marked = null, width = 0;
  const x = (i) => pad.left + (n < 2 ? 0 : (i / (n - 1)) * (width - pad.left - pad.right));
  const y = (value) => pad.top + (1 - (value - bottom) / (top - bottom || 1)) * (height - pad.top - pad.bottom);
  function draw() {
    width = holder.clientWidth;
    if (!width) return;
    const svg = h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const value of [bottom, (bottom + top) / 2, top]) {
      svg.append(h("line", { class: "rule", x1: pad.left, x2: width - pad.right, y1: y(value), y2: y(value) }),
        h("text", { class: "tick end", x: pad.left - 8, y: y(value) + 4 }, yText(value)));
    }
    const every = Math.max(1, Math.ceil(n / Math.max(2, Math.floor((width - pad.left) / 56))));
    for (let i = 0; i < n; i += every) svg.append(h("text", { class: "tick middle", x: x(i), y: height - 5 }, xText(i)));
    if (marked !== null) svg.append(h("line", { class: "now", x1: x(marked), x2: x(marked), y1: pad.top, y2: height - pad.bottom }));
    series.forEach((one, number) => {
      const points = one.values.map((value, i) => (value === null ? null : `${x(i).toFixed(1)},${y(clamp(value, bottom, top)).toFixed(1)}`)).filter(Boolean);
      svg.append(h("polyline", { class: `line tone${number}`, points: points.join(" ") }));
      const here = marked === null ? null : one.values[marked];
      if (here !== null && here !== undefined) svg.append(h("circle", { class: `dot tone${number}`, cx: x(marked), cy: y(clamp(here, bottom, top)), r: 4 }));
    });
    holder.replaceChildren(svg);
  }
  if (pick) {
    holder.classList.add("pickable");
    const at = (event) => {
      const place = event.clientX - holder.getBoundingClientRect().left;
      pick(clamp(Math.round(((place - pad.left) / (width - pad.left - pad.right)) * (n - 1)), 0, n - 1));
    };
    holder.addEventListener("pointerdown", at);
    holder.addEventListener("pointermove", (event) => event.buttons && at(event));
  }
  redrawn(holder, draw);
  const key = series.length < 2 ? null : h("p", { class: "key" }, series.map((one, number) => h("span", {}, h("i", { class: `tone${number}` }), one.label)));
  return { element: h("figure", { class: "figure" }, h("figcaption", {}, label), holder, key), mark: (i) => { marked = i; draw(); } };
}
