// The induction circuit: which earlier head each induction head builds on, by ablation and by weights.

views.circuit = async (mount, data) => {
  const { result } = data;
  const { links, weights, composition } = result;
  const confirmed = links.filter((link) => link.verdict);
  const name = (link) => `${link.earlier} → ${link.later}.${link.route.toLowerCase()}`;
  const most = largest(links.map((link) => link.effect)) || 1;
  const z = (link) => (link.composition - link.null_mean) / link.null_sd;
  mount.append(
    h("p", { class: "takeover" }, h("b", {}, `${confirmed.length} of ${links.length}`), " candidate links are confirmed by ablation.",
      confirmed.length ? ` Strongest: ${confirmed.slice(0, 4).map(name).join(", ")}.` : ""),
    sortable([
      { name: "link", title: "link", cell: (link) => h("b", {}, name(link)), key: name },
      { name: "confirmed", title: "confirmed", cell: (link) => (link.verdict ? "yes" : "no"), key: (link) => (link.verdict ? 1 : 0) },
      { name: "effect", title: "fall", numeric: true, note: "of the later head's induction score when the earlier head is ablated in this input alone", cell: (link) => h("span", { class: "withbar" }, bar(link.effect / most, { centred: true }), signed(link.effect)), key: (link) => link.effect },
      { name: "interval", title: "95 %", numeric: true, cell: (link) => `${signed(link.interval[0])} to ${signed(link.interval[1])}`, key: (link) => link.interval[0] },
      { name: "share", title: "share", numeric: true, note: "of the intact score", cell: (link) => probability(link.share, 2), key: (link) => link.share },
      { name: "null", title: "null", numeric: true, note: "the largest fall by another head of the layer", cell: (link) => signed(link.null), key: (link) => link.null },
      { name: "p", title: "p (effect > null)", numeric: true, note: "of a sign test over sequences against the largest fall by other heads, corrected over all links", cell: (link) => probability(link.p_above_null), key: (link) => link.p_above_null },
      { name: "composition", title: "composition", numeric: true, note: "of the two heads' weights", cell: (link) => probability(link.composition), key: (link) => link.composition },
      { name: "z", title: "z", numeric: true, note: "the composition’s distance from that of randomly rotated weights, in standard deviations", cell: (link) => fixed(z(link), 1), key: z },
    ], links, { limit: 12, marked: (link) => link.verdict }));

  const heads = Object.keys(composition);
  let shown = heads[0];
  const box = h("div", {});
  function showComposition() {
    const grid = composition[shown];
    const highest = Math.max(...grid.flat().filter((value) => value !== null), 1e-9);
    const heat = matrix({
      rows: grid.length, columns: grid[0].length, label: `K-composition of every head with ${shown}`, cell: 40, least: 8,
      rowLabel: (r) => `L${r}`, columnLabel: (c) => `H${c}`,
      colour: (r, c) => (grid[r][c] === null ? null : rgb("amount", grid[r][c] / highest)),
      text: (r, c) => (grid[r][c] === null ? "" : probability(grid[r][c], 2)),
      describe: (r, c) => h("span", {}, h("b", {}, `L${r}H${c}`), grid[r][c] === null ? ` does not come before ${shown}` : ` composes with ${shown}: ${probability(grid[r][c])}`),
    });
    box.replaceChildren(heat.element, legend("amount", "0", probability(highest, 2), "K-composition"));
  }
  const copying = sortable([
    { name: "head", title: "head", cell: (one) => h("b", {}, one.head), key: (one) => one.head },
    { name: "kind", title: "kind", cell: (one) => one.kind.replaceAll("_", "-"), key: (one) => one.kind },
    { name: "copying", title: "copying, eigenvalues", numeric: true, cell: (one) => signed(one.copying, 2), key: (one) => one.copying },
    { name: "output", title: "copying, outputs", numeric: true, cell: (one) => signed(one.copying_output, 2), key: (one) => one.copying_output },
  ], weights, { limit: 12 });
  mount.append(h("div", { class: "columns ruled" },
    heads.length ? h("div", {}, h("div", { class: "toolbar" }, h("h3", {}, "From the weights"), choice("Induction head", heads.map((one) => [one, one]), shown, (to) => { shown = to; showComposition(); })), box) : null,
    h("div", {}, h("h3", {}, "What the heads copy"), copying)));
  if (heads.length) showComposition();
  return { json: () => result, csv: () => links.map(({ interval, ...link }) => ({ link: name(link), ...link, low: interval[0], high: interval[1], null_heads: link.null_heads.join(" ") })) };
};
