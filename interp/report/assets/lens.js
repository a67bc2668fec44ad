// The logit lens: a grid of top guesses, and one token's way through the depth.

views.lens = async (mount, data) => {
  const { result, prompts } = data;
  const rows = result.rows, last = rows.length - 1;
  let example = 0, metric = "probability", row = last, pos = 0, first = 0;
  const WINDOW = 40;
  const text = (id) => named(result.top_texts[String(id)], id);
  const target = () => named(result.target[example], result.target_tokens[example]);
  const depth = (r) => (rows[r] === "embed" ? "the embedding" : r === last ? `block ${rows[r].slice(1)}, the output` : `block ${rows[r].slice(1)}`);

  const METRICS = {
    probability: { name: "probability of the guess", at: (r, p) => result.top_probabilities[r][example][p][0], show: probability, share: (v) => v, ends: ["0", "1"] },
    entropy: { name: "entropy", at: (r, p) => result.entropy[r][example][p], show: (v) => fixed(v, 2), share: (v) => 1 - v / Math.log(result.config.d_vocab ?? 2), ends: [`${show(Math.log(result.config.d_vocab ?? 2), 1)} nats`, "0: certain"] },
    kl: { name: "KL to the output", at: (r, p) => result.kl[r][example][p], show: (v) => fixed(v, 2), share: (v) => 1 - v / (highest("kl") || 1), ends: [() => `${show(highest("kl"), 1)} nats`, "0: the output"] },
  };
  if (result.target) {
    METRICS.target = { name: "probability of the target", at: (r, p) => result.target_probability[r][example][p], show: probability, share: (v) => v, ends: ["0", "1"] };
    METRICS.rank = { name: "rank of the target", at: (r, p) => result.target_rank[r][example][p] + 1, show: (v) => v.toLocaleString("en"), share: (v) => 1 - Math.log(v) / Math.log(result.config.d_vocab ?? 2), ends: [() => (result.config.d_vocab ?? 2).toLocaleString("en"), "1: the guess"] };
  }
  const highest = (name) => Math.max(...result[name].map((one) => Math.max(...one[example])));

  const tokens = () => result.tokens[example];
  const real = () => range(tokens().length).filter((p) => result.real[example][p]);

  // -- the grid ----------------------------------------------------------------------------------------------------
  const grid = h("div", { class: "scroll lens-grid", tabindex: -1 });
  const scale = h("div", {});
  let cells = new Map();
  function showGrid() {
    const columns = real().slice(first, first + WINDOW);
    cells = new Map();
    const head = h("tr", {}, h("th", { scope: "col" }, "after"), columns.map((p) => h("th", { scope: "col", class: "word-head" }, tokenElement(tokens()[p]), h("span", { class: "place" }, String(p)))));
    const body = rows.map((name, r) => h("tr", {}, h("th", { scope: "row" }, r === last ? h("b", {}, name) : name), columns.map((p) => {
      const cell = h("td", { tabindex: -1, "data-row": r, "data-pos": p }, tokenElement(text(result.top_tokens[r][example][p][0])));
      if (result.stable_from[example][p] === r && r > 0) cell.classList.add("settled");
      cells.set(`${r} ${p}`, cell);
      return cell;
    })));
    grid.replaceChildren(h("table", { class: "lens", role: "grid", style: { "--columns": columns.length }, "aria-label": "Top guess after each block, for each token" }, h("thead", {}, head), h("tbody", {}, body)));
    paint();
  }
  function paint() {
    const { at, share, show: say, name, ends } = METRICS[metric];
    for (const cell of cells.values()) {
      const value = at(Number(cell.dataset.row), Number(cell.dataset.pos));
      const colour = rgb("amount", share(value));
      cell.style.background = css(colour);
      cell.style.color = inkOn(colour);
      cell.title = `${name} ${say(value)}`;
    }
    const ended = ends.map((end) => (typeof end === "function" ? end() : end));
    scale.replaceChildren(legend("amount", ...ended, name), h("p", { class: "legend quiet" }, h("span", { class: "settled-key" }), "from here on the guess stays"));
  }
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest("td");
    if (cell) go(Number(cell.dataset.row), Number(cell.dataset.pos));
  });
  grid.addEventListener("keydown", (event) => {
    const columns = real();
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e6], End: [0, 1e6], PageUp: [-1e6, 0], PageDown: [1e6, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const column = clamp(columns.indexOf(pos) + step[1], 0, columns.length - 1);
    if (column < first || column >= first + WINDOW) page(clamp(column - WINDOW / 2, 0, Math.max(0, columns.length - WINDOW)));
    go(clamp(row + step[0], 0, last), columns[column]);
    cells.get(`${row} ${pos}`).focus();
  });

  // -- one token through the depth -----------------------------------------------------------------------------------
  const title = h("h3", {}), where = h("p", { class: "where answer", role: "status" }), guesses = h("ol", { class: "guesses" }), facts = h("dl", { class: "facts" });
  const through = slider("Depth", { min: 0, max: last, value: row, text: (r) => rows[r] }, (r) => go(r, pos));
  through.element.classList.add("wide");
  const charts = h("div", { class: "charts" });
  let chances = null, norms = null;
  function showCharts() {
    const finalGuess = result.top_tokens[last][example][pos][0];
    const lines = [{ label: "top guess", values: range(rows.length).map((r) => result.top_probabilities[r][example][pos][0]) }];
    if (result.target) lines.push({ label: `target ${readable(target())}`, values: range(rows.length).map((r) => result.target_probability[r][example][pos]) });
    else lines.push({ label: `output's guess ${readable(text(finalGuess))}`, values: range(rows.length).map((r) => { const k = result.top_tokens[r][example][pos].indexOf(finalGuess); return k < 0 ? 0 : result.top_probabilities[r][example][pos][k]; }) });
    const options = { xText: (i) => rows[i], pick: (r) => go(r, pos) };
    chances = lineChart(lines, { ...options, label: "Probability by depth", low: 0, high: 1, yText: (y) => probability(y, 1) });
    const lengths = range(rows.length).map((r) => result.residual_norm[r][example][pos]);
    norms = lineChart([{ label: "norm", values: lengths }], { ...options, label: "Length of the residual stream", low: 0, height: 110, yText: (y) => fixed(y, largest(lengths) < 1 ? 2 : largest(lengths) < 20 ? 1 : 0) });
    charts.replaceChildren(chances.element, norms.element);
  }

  function go(r, p, fresh = false) {
    cells.get(`${row} ${pos}`)?.removeAttribute("aria-selected");
    cells.get(`${row} ${pos}`)?.setAttribute("tabindex", "-1");
    const moved = p !== pos || fresh;
    [row, pos] = [r, p];
    const cell = cells.get(`${row} ${pos}`);
    cell?.setAttribute("aria-selected", "true");
    cell?.setAttribute("tabindex", "0");
    through.set(row);
    title.replaceChildren(h("span", { class: "quiet" }, "Through the depth: "), tokenElement(tokens()[pos]), h("span", { class: "quiet" }, ` position ${pos}`));
    const top = result.top_tokens[row][example][pos], chance = result.top_probabilities[row][example][pos];
    where.replaceChildren(tokenElement(tokens()[pos]), h("span", { class: "place" }, ` ${pos} `), "After ", h("b", {}, depth(row)), ", the stream says ", tokenElement(text(top[0])), ` with ${probability(chance[0])}`,
      ...(top.length > 1 ? ["; then ", ...range(Math.min(2, top.length - 1)).flatMap((k) => [k ? ", " : "", tokenElement(text(top[k + 1])), ` ${probability(chance[k + 1])}`])] : []), ".");
    guesses.replaceChildren(...top.map((id, k) => h("li", { class: result.target_tokens && id === result.target_tokens[example] ? "is-target" : null }, tokenElement(text(id)), bar(chance[k]), h("span", { class: "weight" }, probability(chance[k])))));
    const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    facts.replaceChildren(
      fact("residual norm", fixed(result.residual_norm[row][example][pos], 1)),
      fact("entropy", `${fixed(result.entropy[row][example][pos], 2)} nats`),
      fact("KL to output", `${fixed(result.kl[row][example][pos], 2)} nats`),
      ...(result.target ? [fact("target’s rank", (result.target_rank[row][example][pos] + 1).toLocaleString("en")), fact("target’s probability", probability(result.target_probability[row][example][pos])), fact("target’s logit", fixed(result.target_logit[row][example][pos], 2))] : []));
    if (moved) showCharts();
    chances.mark(row);
    norms.mark(row);
    showTakeover();
  }

  // -- the sentence that says what happened --------------------------------------------------------------------------
  const takeover = h("p", { class: "takeover" });
  function showTakeover() {
    const guess = text(result.top_tokens[last][example][pos][0]), sure = result.top_probabilities[last][example][pos][0];
    const from = rows[result.stable_from[example][pos]];
    takeover.replaceChildren("After ", tokenElement(tokens()[pos]), " the model guesses ", tokenElement(guess), ` (${probability(sure)}); this has been the top guess since `, h("b", {}, from), ".");
    if (!result.target || result.target_rank[last][example][pos] === 0) return;
    takeover.append(" The target ", tokenElement(target()), ` ends at rank ${(result.target_rank[last][example][pos] + 1).toLocaleString("en")}.`);
  }

  // -- several prompts, long prompts ----------------------------------------------------------------------------------
  // The grid holds WINDOW tokens and scrolls under its first column; the slider says, and moves, what is in sight.
  const widths = () => [...grid.querySelectorAll("thead th")].slice(0, 2).map((one) => one.offsetWidth + 1);
  const inSight = () => { const [corner, one] = widths(); return Math.max(1, Math.round((grid.clientWidth - corner) / one)); };
  const leftmost = () => first + Math.round(grid.scrollLeft / widths()[1]);
  const position = slider("Tokens", { min: 0, max: 0, value: 0, text: (at) => (grid.clientWidth ? `${at} to ${Math.min(at + inSight(), real().length) - 1} of ${real().length}` : "") }, page);
  function tell() {
    position.range.max = Math.max(0, real().length - inSight());
    position.set(leftmost());
  }
  /** Bring a column to the left edge, with as many of its neighbours as the grid holds. */
  function page(to) {
    const held = clamp(to - Math.floor((WINDOW - inSight()) / 2), 0, Math.max(0, real().length - WINDOW));
    if (held !== first) {
      first = held;
      showGrid();
      cells.get(`${row} ${pos}`)?.setAttribute("aria-selected", "true");
      cells.get(`${row} ${pos}`)?.setAttribute("tabindex", "0");
    }
    grid.scrollLeft = (to - first) * widths()[1];
    tell();
  }
  grid.addEventListener("scroll", () => {
    if (position.element.hidden) return;
    const end = grid.scrollLeft + grid.clientWidth >= grid.scrollWidth - 1;
    if ((grid.scrollLeft <= 0 && first > 0) || (end && first + WINDOW < real().length)) page(leftmost()); // on to the neighbours
    else tell();
  });
  function start(to) {
    example = to;
    const columns = real();
    pos = columns[columns.length - 1];
    first = Math.max(0, columns.length - WINDOW);
    position.element.hidden = first === 0;
    row = last;
    showGrid();
    go(row, pos, true);
    grid.scrollLeft = grid.scrollWidth;
    tell();
  }

  mount.append(takeover,
    h("div", { class: "toolbar" },
      choice("Colour by", Object.entries(METRICS).map(([key, one]) => [key, one.name]), metric, (to) => { metric = to; paint(); }),
      result.tokens.length > 1 ? choice("Prompt", result.tokens.map((_, i) => [i, line(prompts[i])]), 0, (to) => start(Number(to))) : null,
      position.element),
    grid, where, scale,
    h("div", { class: "columns depth" }, h("div", {}, title, through.element, guesses, facts), charts));
  themed(grid, paint);
  redrawn(grid, () => position.element.hidden || tell());
  start(0);

  const csv = () => rows.flatMap((name, r) => result.tokens.flatMap((words, b) => words.map((word, p) => ({
    prompt: b, position: p, token: word, depth: name, guess: text(result.top_tokens[r][b][p][0]), probability: result.top_probabilities[r][b][p][0],
    entropy: result.entropy[r][b][p], kl: result.kl[r][b][p], residual_norm: result.residual_norm[r][b][p],
    ...(result.target ? { target: result.target[b], target_probability: result.target_probability[r][b][p], target_logit: result.target_logit[r][b][p], target_rank: result.target_rank[r][b][p] } : {}),
  })).filter((one) => result.real[one.prompt][one.position])));
  return { json: () => result, csv };
};
