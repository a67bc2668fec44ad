// A sweep: the effect of an intervention in every cell of a grid, as a heatmap and a sorted table.

const CLIP = 80; // tokens of a prompt that are shown

/** One example's prompts by name, the tokens in which they differ marked (of long ones the part around these), and its answers. */
function promptLines(prompts, example, answers) {
  const sides = Object.values(prompts).map((all) => all[example]);
  if (sides.length === 0) return null;
  const differs = (i) => sides.some((tokens) => tokens[i] !== sides[0][i]);
  const n = sides[0].length, first = Math.max(0, range(n).findIndex(differs));
  const from = clamp(first - CLIP / 2, 0, Math.max(0, n - CLIP)), to = Math.min(n, from + CLIP);
  const [right, wrong] = answers[example] ?? [];
  return h("dl", { class: "prompts" }, Object.keys(prompts).map((name, i) => [name, sides[i]]).flatMap(([name, tokens]) => [h("dt", {}, name),
    h("dd", { class: "prompt" }, from > 0 ? "… " : null, range(to - from).map((i) => {
      const element = tokenElement(tokens[from + i]);
      if (differs(from + i)) element.classList.add("differs");
      return element;
    }), to < n ? " …" : null)]), right === undefined ? null : [h("dt", {}, "answer"), h("dd", { class: "answers" }, tokenElement(right), h("span", { class: "quiet" }, " rather than "), tokenElement(wrong))]);
}

views.sweep = async (mount, data) => {
  const { axes, labels, metrics, prompts, examples } = data;
  const names = Object.keys(metrics), sides = Object.values(prompts).map((all) => all[0]); // of a batch the first prompt's tokens label positions
  let metric = names[0], value = "change", order = "place";
  const pair = axes.length === 1 ? [null, 0] : [axes.length - 2, axes.length - 1];
  const holder = h("div", {}), tableBox = h("div", { class: "strongest" }), facts = h("p", { class: "where", role: "status" });
  const token = (i) => [...new Set(sides.map((tokens) => readable(tokens[i])))].join("/"); // both where they differ
  const label = (axis, i) => {
    const text = String(labels[axis][i]);
    if (/^\d+$/.test(text) && axes[axis] === "layer") return `L${text}`;
    if (/^\d+$/.test(text) && axes[axis].endsWith("head")) return `H${text}`;
    return axes[axis].endsWith("pos") && sides[0]?.[i] !== undefined ? `${token(i)} ${text}` : text;
  };
  const pick = (grid, at) => at.reduce((inner, i) => inner[i], grid);
  let standing = axes.map(() => 0); // where further axes than two stand
  const place = (r, c) => standing.map((i, axis) => (axis === pair[0] ? r : axis === pair[1] ? c : i));

  const kept = new Map(); // per metric its cells and their strongest change: thousands, so walked through once
  function cells(name) {
    if (!kept.has(name)) {
      const found = [];
      (function walk(mean, change, at) {
        if (Array.isArray(mean)) mean.forEach((inner, i) => walk(inner, change[i], [...at, i]));
        else if (mean !== null) found.push({ at, mean, change });
      })(metrics[name].mean, metrics[name].change, []);
      kept.set(name, { all: found, strongest: largest(found.map((cell) => cell.change)) || 1 });
    }
    return kept.get(name);
  }

  function update() {
    const one = metrics[metric];
    const grid = one[value];
    const nRows = pair[0] === null ? 1 : labels[pair[0]].length, nColumns = labels[pair[1]].length;
    const base = value === "mean" ? one.into : 0, percent = value === "recovered";
    const at = (r, c) => pick(grid, place(r, c));
    const size = (r, c) => (at(r, c) === null ? -1 : Math.abs(at(r, c) - base));
    const peaks = range(nRows).map((r) => range(nColumns).reduce((best, c) => (size(r, c) > size(r, best) ? c : best), 0)); // each row's strongest column
    const strength = peaks.map((c, r) => Math.max(0, size(r, c)));
    const most = largest(strength);
    const lines = range(nRows);
    if (order === "effect") lines.sort((a, b) => strength[b] - strength[a]);
    const first = lines.findIndex((r) => strength[r] === most);
    const places = most > 0 ? Math.max(2, 1 - Math.floor(Math.log10(most))) : 2;
    const share = (x) => 0.5 + (0.5 * (x - base)) / (most || 1);
    const heat = matrix({
      rows: nRows, columns: nColumns, label: `${value} of ${metric} in every cell`, cell: 46, least: 7, height: 26, square: false,
      start: [first, peaks[lines[first]]],
      rowLabel: pair[0] === null ? null : (r) => label(pair[0], lines[r]),
      columnLabel: (c) => label(pair[1], c),
      colour: (r, c) => (at(lines[r], c) === null ? null : rgb("change", share(at(lines[r], c)))),
      text: (r, c) => (at(lines[r], c) === null ? "" : percent ? fixed(100 * at(lines[r], c), 0) : fixed(at(lines[r], c), places)),
      describe: (r, c) => {
        const cell = place(lines[r], c);
        const where = cell.map((i, axis) => `${axes[axis]} ${label(axis, i)}`).join(", ");
        const [mean, change] = [pick(one.mean, cell), pick(one.change, cell)];
        const spread = one.low && mean !== null ? ` (95 % ${signed(pick(one.low, cell), places)} to ${signed(pick(one.high, cell), places)})` : "";
        return h("span", {}, h("b", {}, where), mean === null ? ": not computed" : `: ${fixed(mean, places)} ${one.unit}, a change of ${signed(change, places)}${spread}${one.recovered ? `; ${fixed(100 * pick(one.recovered, cell), 0)} % recovered` : ""}`);
      },
    });
    const end = (x) => (percent ? `${fixed(100 * x, 0)} %` : fixed(x, places));
    const said = { change: `change${one.unit ? `, ${one.unit}` : ""}`, mean: "mean", recovered: "recovered: 0 % is the corrupted run, 100 % the clean one" }[value];
    const placed = axes.some((axis) => axis.endsWith("pos")) && examples > 1 && sides.length ? `; tokens are those of the first of ${examples} prompts` : "";
    holder.replaceChildren(heat.element, legend("change", end(base - most), end(base + most), said + placed));
    facts.replaceChildren("The run that was changed: ", h("b", {}, `${metric} ${fixed(one.into, places)} ${one.unit}`), ".");
    if (one.runs) facts.append(" Untouched runs: ", ...Object.entries(one.runs).flatMap(([name, x], i) => [i ? ", " : "", `${name} `, h("b", {}, fixed(x, places))]), ".");
    if (one.together) facts.append(" All parts together change it by ", h("b", {}, signed(one.together.joint, places)), `; one by one, their changes add up to ${signed(one.together.sum, places)}.`);
    const { all, strongest } = cells(metric);
    const few = one.least_p < 0.05 ? "" : ", so that no cell can be significant at .05; 6 examples or more can";
    const least = one.least_p ? h("p", { class: "note" }, `${examples} examples: the least p possible is ${probability(one.least_p)}${few}.`) : "";
    tableBox.replaceChildren(h("h3", {}, "Strongest cells"), least, sortable([
      ...axes.map((axis, i) => ({ name: axis, title: axis, cell: (cell) => label(i, cell.at[i]), key: (cell) => cell.at[i] })),
      { name: "mean", title: metric, numeric: true, cell: (cell) => fixed(cell.mean, places), key: (cell) => cell.mean },
      { name: "change", title: "change", numeric: true, cell: (cell) => h("span", { class: "withbar" }, bar(cell.change / strongest, { centred: true }), signed(cell.change, places)), key: (cell) => Math.abs(cell.change) },
      ...(one.recovered ? [{ name: "recovered", title: "recovered", numeric: true, cell: (cell) => `${fixed(100 * pick(one.recovered, cell.at), 0)} %`, key: (cell) => pick(one.recovered, cell.at), note: "the share of the way from the corrupted run to the clean one" }] : []),
      ...(one.low ? [{ name: "interval", title: "95 %", numeric: true, cell: (cell) => `${signed(pick(one.low, cell.at), places)} to ${signed(pick(one.high, cell.at), places)}`, note: "bootstrap interval of this cell’s change over the examples" },
        ...(one.p ? [{ name: "p", title: "p (mean change ≠ 0)", numeric: true, note: "of the mean change over examples being 0: sign flips, corrected over all cells of the grid (max-T)", cell: (cell) => probability(pick(one.p, cell.at)), key: (cell) => pick(one.p, cell.at) }] : [])] : []),
    ], all, { limit: 12, order: "change" }));
  }

  const telling = cells(metric).all.find((cell) => Math.abs(cell.change) === cells(metric).strongest);
  if (telling) standing = [...telling.at];
  const further = axes.map((axis, i) => (pair.includes(i) ? null : choice(axis, labels[i].map((_, j) => [j, label(i, j)]), standing[i], (to) => { standing[i] = Number(to); update(); })));
  const held = sides.length ? Object.values(prompts)[0].length : 0; // prompts that the page has
  const box = h("div", {}), showPrompt = (i) => box.replaceChildren(promptLines(prompts, i, data.answers));
  if (held) showPrompt(0);
  if (held > 1) mount.append(h("div", { class: "toolbar" }, choice(Object.keys(prompts).length > 1 ? "Pair" : "Prompt", range(held).map((i) => [i, `${i + 1} of ${examples}`]), 0, (to) => showPrompt(Number(to)))));
  mount.append(box, h("div", { class: "toolbar" },
    names.length > 1 ? choice("Metric", names.map((one) => [one, one]), metric, (to) => { metric = to; update(); }) : null,
    choice("Show", [["change", "change"], ["mean", "mean"], ...(metrics[metric].recovered ? [["recovered", "recovered"]] : [])], value, (to) => { value = to; update(); }),
    axes.length > 1 ? choice("Rows by", [["place", axes[pair[0]]], ["effect", "strongest effect"]], order, (to) => { order = to; update(); }) : null,
    further), facts, holder, tableBox);
  update();
  return {
    json: () => data.result,
    csv: () => {
      const evidence = { low: metrics[metric].low, high: metrics[metric].high, p_mean_change: metrics[metric].p };
      const known = Object.entries(evidence).filter(([, grid]) => grid);
      return cells(metric).all.map(({ at, mean, change }) => ({
        ...Object.fromEntries(axes.map((axis, i) => [axis, labels[i][at[i]]])), [metric]: mean, change,
        ...Object.fromEntries(known.map(([name, grid]) => [name, pick(grid, at)])),
      }));
    },
  };
};
