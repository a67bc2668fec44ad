// One head's attention on one prompt: unpacked from the page, asked for weights and scores.

/**
 * A head from its packed form (see interp/report/packing.py). Cells lie in rows of the lower triangle.
 * "scores": 16-bit scores between each row's ends, 0 where hidden. "weights": up to 8-bit shares of each row's peak.
 */
class Pattern {
  constructor(n, buffer, { kind, levels }) {
    this.n = n;
    this.exact = kind === "scores";
    this.levels = levels;
    this.first = new Float32Array(buffer, 0, n); // lowest score, or peak weight
    this.second = new Float32Array(buffer, 4 * n, n); // highest score, or log of the row's summed exp(score)
    this.codes = this.exact ? new Uint16Array(buffer, 8 * n) : new Uint8Array(buffer, 8 * n);
    this.sums = null;
  }

  code(query, key) {
    return key > query ? 0 : this.codes[(query * (query + 1)) / 2 + key];
  }

  /** log sum exp of one row's scores. */
  normaliser(query) {
    if (!this.exact) return this.second[query];
    if (!this.sums) this.sums = new Float64Array(this.n).fill(NaN);
    if (Number.isNaN(this.sums[query])) {
      let sum = 0;
      for (let key = 0; key <= query; key++) {
        const score = this.score(query, key);
        if (score !== null) sum += Math.exp(score - this.second[query]);
      }
      this.sums[query] = this.second[query] + Math.log(sum);
    }
    return this.sums[query];
  }

  /** The score before the softmax; null where the query may not see the key, or where its weight rounds to 0. */
  score(query, key) {
    const code = this.code(query, key);
    if (code === 0) return null;
    if (!this.exact) return Math.log(this.weight(query, key)) + this.second[query];
    const low = this.first[query];
    return low + ((code - 1) / this.levels) * (this.second[query] - low);
  }

  weight(query, key) {
    const code = this.code(query, key);
    if (code === 0) return 0;
    if (!this.exact) return (code / this.levels) * this.first[query];
    return Math.exp(this.score(query, key) - this.normaliser(query));
  }

  /** The weight below which a code is 0: what was rounded away. */
  unseen(query) {
    return this.exact ? 0 : this.first[query] / (2 * this.levels);
  }

  weightText(query, key) {
    const weight = this.weight(query, key);
    return weight === 0 && key <= query && !this.exact ? "<" + probability(this.unseen(query)).replace("<", "") : probability(weight);
  }

  scoreText(query, key) {
    const score = this.score(query, key);
    if (this.exact) return score === null ? "hidden" : fixed(score, 2);
    return score === null ? "< " + fixed(Math.log(this.unseen(query)) + this.second[query], 2) : "≈ " + fixed(score, 2);
  }

  row(query) {
    return range(query + 1).map((key) => this.weight(query, key));
  }
}

const sheets = new WeakMap(); // per pattern, its last drawing

/** Draw a pattern into w x tall pixels: every pixel the strongest of its cells, on a square-root scale. */
function drawPattern(context, pattern, left, top, w, tall) {
  const name = `${w} ${tall} ${dark()}`;
  if (sheets.get(pattern)?.name !== name) sheets.set(pattern, { name, sheet: sheetOf(pattern, w, tall) });
  context.imageSmoothingEnabled = false;
  context.drawImage(sheets.get(pattern).sheet, left, top, w, tall);
}

function sheetOf(pattern, w, tall) {
  const { n } = pattern;
  const [across, down] = [w / n, tall / n];
  const strongest = new Float32Array(w * tall);
  for (let query = 0; query < n; query++) {
    const y = Math.floor(query * down), yEnd = Math.min(tall, Math.max(y + 1, Math.floor((query + 1) * down)));
    for (let key = 0; key <= query; key++) {
      const weight = pattern.weight(query, key);
      const x = Math.floor(key * across), xEnd = Math.min(w, Math.max(x + 1, Math.floor((key + 1) * across)));
      for (let py = y; py < yEnd; py++)
        for (let px = x; px < xEnd; px++) if (weight > strongest[py * w + px]) strongest[py * w + px] = weight;
    }
  }
  const scale = lookup("amount"), hidden = channels(token("--hidden"));
  const image = new ImageData(w, tall);
  for (let i = 0; i < w * tall; i++) {
    const future = Math.floor((i % w) / across) > Math.floor(Math.floor(i / w) / down);
    const at = future ? 0 : 3 * Math.round(255 * Math.sqrt(Math.min(1, strongest[i])));
    const from = future ? hidden : scale;
    image.data.set([from[at], from[at + 1], from[at + 2], 255], 4 * i);
  }
  const sheet = h("canvas", { width: w, height: tall });
  sheet.getContext("2d").putImageData(image, 0, 0);
  return sheet;
}

/** A pattern as a grid that says who may see whom. `head` gives the Pattern; `query` the highlighted row. */
function patternMatrix(tokens, head, { query = () => null, picked = null, scores = true, label = "Attention: queries down, keys across" } = {}) {
  const n = tokens.length;
  const names = tokens.map((text, i) => (n > 60 ? String(i) : brief(text, 12)));
  const named = (i) => [tokenElement(tokens[i]), h("span", { class: "quiet" }, ` ${i}`)];
  return matrix({
    rows: n,
    columns: n,
    label,
    cell: clamp(Math.round(400 / n), 2, 34),
    least: 0.05,
    hint: "Rows read, columns are read. Point at a cell to see who may see whom.",
    rowLabel: (r) => names[r],
    columnLabel: (c) => names[c],
    row: query,
    colour: (r, c) => (c > r || (head().exact && head().code(r, c) === 0) ? null : rgb("amount", Math.sqrt(head().weight(r, c)))),
    dense: (context, left, top, w, tall) => drawPattern(context, head(), left, top, w, tall),
    text: n <= 14 ? (r, c) => (head().weight(r, c) >= 0.005 ? probability(head().weight(r, c), 2) : "") : null,
    picked,
    describe: (r, c) => {
      if (c > r) return h("span", {}, named(r), " may not see ", named(c), ": it lies in the future, so its weight is exactly 0.");
      if (head().exact && head().code(r, c) === 0) return h("span", {}, named(r), " may not see ", named(c), ": it lies outside the window, so its weight is exactly 0.");
      return h("span", {}, named(r), " sees ", named(c), ": weight ", h("b", {}, head().weightText(r, c)), scores ? `, score ${head().scoreText(r, c)}` : "");
    },
  });
}
