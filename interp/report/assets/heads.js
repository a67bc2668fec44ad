// The head report: per kind the scores of all heads, the best ones, what they cause, and where they look.

views.heads = async (mount, data) => {
  const { result } = data;
  const name = (one) => `L${one.layer}H${one.head}`;
  const words = (kind) => kind.replaceAll("_", "-");
  const isFound = (one) => one.pattern === "yes";
  const isConfirmed = (one) => one.confirmed === "alone" || one.confirmed === "jointly";
  const span = (ends, digits) => `${signed(ends[0], digits)} to ${signed(ends[1], digits)}`;
  let kind = result.kinds[0];
  const panel = h("div", {});
  const ranked = () => result.heads.filter((one) => one.kind === kind).sort((a, b) => b.score - a.score || (b.details.alpha_1 ?? 0) - (a.details.alpha_1 ?? 0));

  function showKind() {
    const rows = ranked(), found = rows.filter(isFound);
    const at = new Map(rows.map((one) => [`${one.layer} ${one.head}`, one]));
    const nLayers = 1 + Math.max(...rows.map((one) => one.layer)), nHeads = 1 + Math.max(...rows.map((one) => one.head));
    const causal = result.causal.find((one) => one.kind === kind);
    const grid = matrix({
      rows: nLayers, columns: nHeads, label: `Scores of all heads as ${words(kind)} heads: layers down, heads across`,
      cell: 40, least: 8, rowLabel: (r) => `L${r}`, columnLabel: (c) => `H${c}`,
      colour: (r, c) => rgb("amount", at.get(`${r} ${c}`).score),
      text: (r, c) => probability(at.get(`${r} ${c}`).score, 2),
      framed: (r, c) => isFound(at.get(`${r} ${c}`)),
      dotted: (r, c) => result.patterns[`L${r}H${c}`],
      picked: (r, c) => look(`L${r}H${c}`)?.scrollIntoView({ block: "nearest" }),
      describe: (r, c) => {
        const one = at.get(`${r} ${c}`);
        const others = Object.entries(one.confounds).map(([other, score]) => `${words(other)} ${probability(score, 2)}`).join(", ");
        return h("span", {}, h("b", {}, name(one)), ` score ${probability(one.score)}, 95 % ${probability(one.interval[0])} to ${probability(one.interval[1])}, bar ${probability(one.bar)}, p ${probability(one.p_value)}; pattern ${one.pattern}${one.confirmed === "not measured" ? "" : `, confirmed ${one.confirmed}`}; by thirds of the tokens ${one.by_third.map((third) => (third === null ? "–" : probability(third, 2))).join(" ")}${others ? `; as ${others}` : ""}${details(one)}. ${result.patterns[name(one)] ? "Choose it to see where it looks." : "Where it looks is not stored."}`);
      },
    });
    const table = sortable([
      { name: "head", title: "head", cell: (one) => h("b", {}, name(one)), key: (one) => one.layer * 1e4 + one.head },
      { name: "pattern", title: "pattern", cell: (one) => one.pattern, key: (one) => ["no", "borderline", "yes"].indexOf(one.pattern), note: "is the score above its bar" },
      { name: "confirmed", title: "confirmed", cell: (one) => (one.confirmed === "not measured" ? "–" : one.confirmed), key: (one) => (isConfirmed(one) ? 1 : 0), note: "by taking heads out: alone, or jointly with others of the kind" },
      { name: "score", title: result.settings.score_names?.[kind] ?? "score", numeric: true, cell: (one) => h("span", { class: "withbar" }, bar(one.score), probability(one.score)), key: (one) => one.score },
      { name: "interval", title: "95 %", numeric: true, cell: (one) => `${probability(one.interval[0])} – ${probability(one.interval[1])}`, key: (one) => one.interval[0], note: "bootstrap interval over sequences" },
      { name: "bar", title: "bar", numeric: true, cell: (one) => probability(one.bar), key: (one) => one.bar, note: "the kind's least score, or twice what confounds give" },
      { name: "p", title: "p (> bar)", numeric: true, cell: (one) => probability(one.p_value), key: (one) => one.p_value, note: "of score > bar, one-sided, corrected over all heads" },
      { name: "effect", title: "effect", numeric: true, cell: (one) => (one.effect === null ? "–" : `${signed(one.effect, 2)} (${span(one.effect_interval, 2)})`), key: (one) => one.effect, note: causal ? `what taking out this head alone does, in ${causal.unit}` : null },
    ], rows, { limit: 10, order: "score", marked: isFound });
    panel.replaceChildren(
      h("p", { class: "takeover" }, h("b", {}, found.length ? `${found.length} ${words(kind)} head${found.length > 1 ? "s" : ""}` : `No ${words(kind)} head`), ` among ${rows.length}${found.length ? `, ${found.filter(isConfirmed).length} confirmed` : ""}.`, found.length ? ` Best: ${found.slice(0, 6).map((one) => `${name(one)} ${probability(one.score, 2)}`).join(", ")}.` : ""),
      causal ? evidence(causal) : "",
      kind === "sink" && Object.keys(result.sink_share).length ? h("p", { class: "evidence" }, `Share of all heads that are sinks, mean over sequences: ${Object.entries(result.sink_share).map(([on, share]) => `${probability(share, 2)} on ${on === "random" ? "random tokens" : on}`).join(", ")}.`) : "",
      h("div", { class: "verdicts" }, h("div", {}, h("h3", {}, "All heads"), grid.element, legend("amount", "0", "1", "score; heads with the pattern are framed, a dot marks those whose pattern is stored")), h("div", {}, h("h3", {}, "Evidence"), table)));
    const best = rows.find((one) => result.patterns[name(one)]);
    if (best) look(name(best));
  }

  /** How a sink rests, which decides nothing. */
  function details(one) {
    const said = Object.entries(one.details).map(([what, value]) => `${what.replaceAll("_", " ")} ${probability(value, 2)}`).join(", ");
    return said && `; ${said}`;
  }

  function evidence(causal) {
    const nulls = causal.null_effects;
    const against = nulls.length
      ? ` Beside ${causal.comparison}: ${signed(Math.min(...nulls), 2)} to ${signed(Math.max(...nulls), 2)} (p ${probability(causal.p_value)}, the least possible ${probability(causal.least_p)}).`
      : ` ${causal.comparison}.`;
    const share = causal.share === null ? "" : `, ${probability(causal.share, 2)} of what there is to lose`;
    return h("p", { class: "evidence" }, h("b", {}, `Confirmed: ${causal.confirmed}. ${signed(causal.effect, 2)} ${causal.unit}`), ` (95 % ${span(causal.interval, 2)}${share}): ${causal.description}.${against}`);
  }

  // -- where the best heads look -------------------------------------------------------------------------------------
  const tokens = result.tokens_shown;
  let shown = Object.keys(result.patterns)[0];
  const plain = () => {
    const pattern = result.patterns[shown];
    return { n: tokens.length, exact: false, weight: (q, k) => pattern[q][k], weightText: (q, k) => probability(pattern[q][k]) };
  };
  let current = shown ? plain() : null;
  const lookTitle = h("h3", {});
  const missing = h("p", { class: "note", role: "status", hidden: true });
  const patterns = shown ? patternMatrix(tokens, () => current, { scores: false }) : null;
  const chosen = shown ? choice("Head", Object.keys(result.patterns).map((one) => [one, one]), shown, look) : null;
  /** Show a head's pattern and return its element, or say that it is not stored. */
  function look(head) {
    missing.hidden = head in result.patterns;
    missing.textContent = `Where ${head} looks is not stored in this page, only where ${Object.keys(result.patterns).join(", ") || "no head"} looks; analyses/logit_lens.py shows every head on a prompt of yours.`;
    if (!missing.hidden) return null;
    shown = head;
    current = plain();
    chosen.querySelector("select").value = head;
    lookTitle.textContent = `Where ${head} looks`;
    patterns.draw();
    return patterns.element;
  }
  const losses = [{ label: "as it is", values: result.token_loss }];
  if (result.token_loss_ablated) losses.push({ label: "without its induction heads", values: result.token_loss_ablated });
  const loss = lineChart(losses, { label: "Loss of each next token, nats", low: 0, height: 240, yText: (y) => fixed(y, 1), xText: (i) => String(i + 1) });

  mount.append(segmented("Kind of head", result.kinds.map((one) => [one, words(one)]), kind, (to) => { kind = to; showKind(); }).element, panel,
    h("div", { class: "columns ruled" }, h("div", {}, h("div", { class: "toolbar" }, lookTitle, chosen), missing, ...(patterns ? [patterns.element, legend("amount", "0", "1", "square-root scale")] : [])), h("div", {}, loss.element)));
  showKind();
  return { json: () => result, csv: () => result.heads.map(({ interval, effect_interval, confounds, by_third, details, ...one }) => ({ name: name(one), ...one, low: interval[0], high: interval[1], effect_low: effect_interval?.[0] ?? null, effect_high: effect_interval?.[1] ?? null, first_third: by_third[0], second_third: by_third[1], last_third: by_third[2] })) };
};
