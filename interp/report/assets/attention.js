// Who attends to whom: a sentence with arcs, weights and scores, the causal mask, and all heads side by side.

views.attention = async (mount, data) => {
  const { tokens, layers, heads: nHeads, packs } = data;
  const n = tokens.length;
  const kept = new Map();
  let [layer, head] = data.start, query = n - 1, sort = n > 24 ? "weight" : "position", all = false;

  async function load(l, i) {
    const name = `L${l}H${i}`;
    if (!kept.has(name)) {
      kept.set(name, new Pattern(n, await unpack(packs[name].id), packs[name]));
      if (kept.size > 24) kept.delete(kept.keys().next().value);
    }
    return kept.get(name);
  }
  let pattern = await load(layer, head);

  // -- the sentence ------------------------------------------------------------------------------------------------
  const words = tokens.map((text, i) =>
    h("button", { type: "button", class: "word", tabindex: -1, "data-pos": i, onclick: () => ask(i), onfocus: () => ask(i) }, tokenElement(text)));
  const sentence = h("div", { class: n > 200 ? "sentence" : "sentence dimmed", role: "toolbar", "aria-label": "Tokens: choose the query" }, words);
  const arcs = h("svg", { class: "arcs", "aria-hidden": "true" });
  const strip = h("div", { class: "strip-box", tabindex: -1 }, h("div", { class: "strip-inner" }, arcs, sentence));
  sentence.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: query - 1, ArrowRight: query + 1, Home: 0, End: n - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    words[clamp(to, 0, n - 1)].focus();
  });
  let centres = [];
  function measure() {
    centres = words.map((word) => word.offsetLeft + word.offsetWidth / 2);
    arcs.setAttribute("width", sentence.scrollWidth);
  }

  // -- one query ---------------------------------------------------------------------------------------------------
  const title = h("h3", {});
  const bars = h("ol", { class: "bars" });
  const more = h("button", { type: "button", class: "plain", onclick: () => { all = !all; showBars(); } });
  const grid = patternMatrix(tokens, () => pattern, { query: () => query, picked: (r) => { ask(r); reveal(); } });
  let shaded = [];

  function ask(to) {
    if (to === query && title.childNodes.length) return;
    words[query].removeAttribute("aria-current");
    words[query].tabIndex = -1;
    query = to;
    showQuery();
  }

  /** Scroll the sentence to the query, with some room for what it looks at. */
  function reveal() {
    strip.scrollLeft = centres[query] - strip.clientWidth * 0.7;
  }

  function showQuery() {
    const weights = pattern.row(query);
    words[query].tabIndex = 0;
    words[query].setAttribute("aria-current", "true");
    shaded.forEach((i) => words[i].style.removeProperty("--weight"));
    shaded = range(query + 1).filter((key) => weights[key] >= 0.01);
    shaded.forEach((key) => words[key].style.setProperty("--weight", `${Math.round(100 * Math.sqrt(weights[key]))}%`));
    drawArcs(weights);
    showBars(weights);
    title.replaceChildren(tokenElement(tokens[query]), h("span", { class: "quiet" }, ` position ${query} · L${layer}H${head}`));
    grid.draw();
  }

  function drawArcs(weights) {
    const strongest = shaded.slice().sort((a, b) => weights[b] - weights[a]).slice(0, 60);
    const height = 84;
    arcs.setAttribute("height", height);
    arcs.replaceChildren(...strongest.reverse().map((key) => {
      const [from, to] = [centres[query], centres[key]];
      const rise = key === query ? 26 : 18 + 50 * Math.min(1, Math.abs(from - to) / Math.min(700, centres[n - 1] - centres[0] || 1));
      const d = key === query
        ? `M${from - 7},${height} C${from - 22},${height - rise} ${from + 22},${height - rise} ${from + 7},${height}`
        : `M${from},${height} C${from},${height - rise * 1.3} ${to},${height - rise * 1.3} ${to},${height}`;
      return h("path", { d, "stroke-width": (1 + 9 * weights[key]).toFixed(2), style: { opacity: (0.2 + 0.75 * Math.sqrt(weights[key])).toFixed(2) } });
    }));
  }

  function showBars(weights = pattern.row(query)) {
    const keys = range(query + 1);
    const ranked = keys.slice().sort((a, b) => weights[b] - weights[a]);
    const limit = all ? 400 : 16;
    const chosen = ranked.slice(0, limit);
    if (sort === "position") chosen.sort((a, b) => a - b);
    const rest = ranked.slice(limit);
    bars.replaceChildren(...chosen.map((key) => {
      return h("li", { "data-key": key }, h("span", { class: "place" }, String(key)), tokenElement(tokens[key]), bar(weights[key]),
        h("span", { class: "weight" }, pattern.weightText(query, key)), h("span", { class: "score" }, pattern.scoreText(query, key)));
    }));
    if (rest.length) {
      const left = Math.max(0, 1 - chosen.reduce((sum, key) => sum + weights[key], 0));
      bars.append(h("li", { class: "quiet" }, h("span", {}), h("span", {}, `${rest.length} more`), bar(left, { tone: "faint" }), h("span", { class: "weight" }, probability(left)), h("span", {})));
    }
    more.hidden = keys.length <= 16;
    more.textContent = all ? "Show the strongest" : "Show more keys";
  }

  // -- choosing a head ---------------------------------------------------------------------------------------------
  let asked = [layer, head]; // chosen, and perhaps still being unpacked
  const layerField = choice("Layer", layers.map((l) => [l, `L${l}`]), layer, (to) => pick(Number(to), asked[1]));
  const headField = choice("Head", range(nHeads).map((i) => [i, `H${i}`]), head, (to) => pick(asked[0], Number(to)));
  const precision = h("p", { class: "note" });
  async function pick(l, i) {
    const own = asked = [l, i];
    layerField.querySelector("select").value = l;
    headField.querySelector("select").value = i;
    heads.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", button.dataset.head === `L${l}H${i}`));
    const loaded = await load(l, i);
    if (own !== asked) return; // of two quick choices the later is shown, whichever loads first
    [layer, head, pattern] = [l, i, loaded];
    const pack = packs[`L${l}H${i}`];
    precision.textContent = pattern.exact ? `Scores are stored to ±${show(pack.error, 5)}.` : `Weights are stored to ±${show(100 * pack.error, 1)} % of each row's largest; scores are their logarithms, so ≈.`;
    showQuery();
  }

  // -- all heads, drawn when they come into sight ------------------------------------------------------------------
  const heads = h("div", { class: "heads", hidden: true });
  const watcher = new IntersectionObserver((entries) => entries.forEach(async (entry) => {
    if (!entry.isIntersecting) return;
    watcher.unobserve(entry.target);
    drawSmall(entry.target);
  }), { rootMargin: "200px" });
  async function drawSmall(button) {
    const name = button.dataset.head;
    const own = kept.get(name) ?? new Pattern(n, await unpack(packs[name].id), packs[name]);
    const canvas = button.querySelector("canvas");
    const side = Math.round(72 * Math.min(2, window.devicePixelRatio || 1));
    canvas.width = canvas.height = side;
    drawPattern(canvas.getContext("2d"), own, 0, 0, side, side);
    button.dataset.drawn = "";
  }
  for (const l of layers) {
    heads.append(h("div", { class: "heads-row" }, h("h4", {}, `Layer ${l}`), h("div", { class: "heads-cells" }, range(nHeads).map((i) =>
      h("button", { type: "button", "data-head": `L${l}H${i}`, "aria-label": `Layer ${l}, head ${i}`, onclick: () => { modes.set("one"); mode("one"); pick(l, i); } },
        h("canvas", {}), h("span", {}, `H${i}`))))));
  }
  heads.querySelectorAll("button").forEach((button) => watcher.observe(button));
  themed(heads, () => heads.querySelectorAll("[data-drawn]").forEach(drawSmall));

  const one = h("div", {}, strip, h("div", { class: "columns" },
    h("div", {}, title, h("div", { class: "barhead quiet" }, h("span", {}, "key"), h("span", {}, "weight"), h("span", {}, "score")), bars, more),
    h("div", {}, grid.element, legend("amount", "0", "1", "square-root scale"))));
  function mode(to) {
    one.hidden = to !== "one";
    heads.hidden = to !== "all";
    sorting.hidden = to !== "one";
    if (to === "one") { measure(); showQuery(); }
  }
  const modes = segmented("Show", [["one", "One head"], ["all", "All heads"]], "one", mode);
  const sorting = choice("Keys by", [["position", "position"], ["weight", "weight"]], sort, (to) => { sort = to; showBars(); });
  mount.append(h("div", { class: "toolbar" }, modes.element, layerField, headField, sorting), one, heads, precision);
  redrawn(strip, () => { measure(); drawArcs(pattern.row(query)); });
  measure();
  await pick(layer, head);
  strip.scrollLeft = strip.scrollWidth;

  const cells = () => range(n).flatMap((q) => range(q + 1).map((k) => ({ head: `L${layer}H${head}`, query: q, key: k, query_token: tokens[q], key_token: tokens[k], weight: pattern.weight(q, k), score: pattern.score(q, k) })));
  return {
    json: () => ({ ...data.result, head: `L${layer}H${head}`, weights: range(n).map((q) => pattern.row(q)), scores: range(n).map((q) => range(q + 1).map((k) => pattern.score(q, k))) }),
    csv: cells,
  };
};
