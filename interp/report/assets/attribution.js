// Which write said it: an answer's logit as a sum over components, and the tokens each write raises.

views.attribution = async (mount, data) => {
  const { labels, values, logit, answer } = data.result;
  let example = "mean", order = "size", all = false;
  const bars = h("ol", { class: "bars attribution" });
  const total = h("p", { class: "where", role: "status" });
  const more = h("button", { type: "button", class: "plain", onclick: () => { all = !all; update(); } });
  const of = (row) => (example === "mean" ? row.reduce((sum, one) => sum + one, 0) / row.length : row[Number(example)]);
  function update() {
    const now = values.map(of), most = largest(now) || 1;
    const ranked = range(labels.length).sort((a, b) => Math.abs(now[b]) - Math.abs(now[a]));
    const chosen = ranked.slice(0, all ? 400 : 20);
    if (order === "place") chosen.sort((a, b) => a - b);
    const rest = ranked.slice(chosen.length).reduce((sum, i) => sum + now[i], 0);
    bars.replaceChildren(...chosen.map((i) => h("li", { "data-label": labels[i] }, h("span", { class: "name" }, labels[i]), bar(now[i] / most, { centred: true }), h("span", { class: "weight" }, signed(now[i], 3)))));
    if (ranked.length > chosen.length) bars.append(h("li", { class: "quiet" }, h("span", {}, `${ranked.length - chosen.length} more`), bar(rest / most, { centred: true }), h("span", { class: "weight" }, signed(rest, 3))));
    const one = example !== "mean" ? answer[Number(example)] : new Set(answer).size === 1 ? answer[0] : null;
    const what = one && readable(one).replace(/(['"])␣-␣(['"])/, "$1 - $2"); // the minus of a difference is no token
    total.replaceChildren(data.difference ? "All parts add up to the logit difference" : "All parts add up to the logit", ...(what ? [data.difference ? " " : " of ", h("b", {}, h("bdi", { class: "token" }, what))] : []), ": ", h("b", {}, fixed(of(logit), 3)), ".");
    more.hidden = labels.length <= 20;
    more.textContent = all ? "Show the largest" : "Show more";
  }
  mount.append(h("div", { class: "toolbar" },
    data.prompts.length > 1 ? choice("Prompt", [["mean", "mean over prompts"], ...data.prompts.map((text, i) => [i, line(text)])], example, (to) => { example = to; update(); }) : null,
    choice("Order", [["size", "by size"], ["place", "as in the model"]], order, (to) => { order = to; update(); })), total, bars, more);
  update();
  return { json: () => data.result, csv: () => labels.map((label, i) => ({ component: label, ...Object.fromEntries(values[i].map((one, b) => [`prompt_${b}`, one])) })) };
};

views.increments = async (mount, data) => {
  const { result } = data;
  const text = (id) => named(result.texts[String(id)], id);
  const most = largest(result.target_by ?? []) || 1;
  const list = (ids, by) => h("span", { class: "tokens" }, ids.slice(0, 4).map((id, k) => h("span", { class: "chip small" }, tokenElement(text(id)), h("span", { class: "quiet" }, ` ${signed(by[k], 2)}`))));
  const rows = result.labels.map((label, i) => ({ i, label }));
  const columns = [{ name: "write", title: "write", cell: (row) => row.label, key: (row) => row.i }];
  if (result.target) columns.push({ name: "target", title: h("span", {}, "logit of ", tokenElement(result.target)), numeric: true, cell: (row) => h("span", { class: "withbar" }, bar(result.target_by[row.i] / most, { centred: true }), signed(result.target_by[row.i], 2)), key: (row) => Math.abs(result.target_by[row.i]) });
  columns.push({ name: "raises", title: "raises", cell: (row) => list(result.raised[row.i], result.raised_by[row.i]) }, { name: "lowers", title: "lowers", cell: (row) => list(result.lowered[row.i], result.lowered_by[row.i]) });
  mount.append(h("p", { class: "prompt" }, result.tokens.slice(0, result.position + 1).slice(-60).map((one) => tokenElement(one)), h("span", { class: "caret", "aria-hidden": "true" })),
    h("p", { class: "where" }, ...(result.target ? ["Bars are what each write adds to the logit of ", h("b", {}, tokenElement(result.target)), " over what it adds to the mean logit of the vocabulary; the"] : ["The"]),
      " numbers beside tokens are the same for these tokens."),
    sortable(columns, rows, { limit: 20, order: result.target ? "target" : null }));
  return { json: () => result, csv: () => rows.map(({ i, label }) => ({ write: label, raises: text(result.raised[i][0]), by: result.raised_by[i][0], lowers: text(result.lowered[i][0]), lowers_by: result.lowered_by[i][0], ...(result.target ? { target_by: result.target_by[i] } : {}) })) };
};
