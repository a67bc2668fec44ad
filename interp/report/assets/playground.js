// The next token: what temperature, top-k and top-p do to the model's real logits.

/** A seeded stream of numbers in [0, 1): the same draws on every visit (mulberry32). */
function seeded(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Probabilities of the kept tokens and of all others together, after temperature, then top-k, then top-p. */
function pruned(result, temperature, topK, topP) {
  const logits = result.top_logits, n = logits.length;
  if (temperature === 0) return { kept: range(n).map((i) => (i === 0 ? 1 : 0)), rest: 0, survivors: 1, beyond: false };
  const scaled = logits.map((logit) => logit / temperature), peak = scaled[0];
  const step = result.temperatures.findIndex((one) => Math.abs(one - temperature) < 1e-6);
  let weights = scaled.map((one) => Math.exp(one - peak));
  let rest = result.rest === null ? 0 : Math.exp(result.rest[step] - peak);
  if (topK !== null) {
    const bar = logits[Math.min(topK, n) - 1]; // ties with the k-th stay, as in models.generate
    weights = weights.map((weight, i) => (logits[i] >= bar ? weight : 0));
    rest = 0;
  }
  const total = weights.reduce((sum, one) => sum + one, 0) + rest;
  let kept = weights.map((weight) => weight / total);
  rest /= total;
  let beyond = false;
  if (topP !== null) {
    let before = 0;
    const nucleus = kept.map((p) => { const stays = p > 0 && before < topP; before += p; return stays ? p : 0; });
    beyond = rest > 0 && before < topP;
    if (!beyond) {
      const mass = nucleus.reduce((sum, one) => sum + one, 0);
      kept = nucleus.map((p) => p / mass);
      rest = 0;
    }
  }
  return { kept, rest, survivors: kept.filter((p) => p > 0).length, beyond };
}

views.playground = async (mount, data) => {
  const { result } = data;
  const text = (i) => named(result.top_texts[i], result.top_tokens[i]);
  const n = result.top_logits.length, all = n + result.n_rest;
  const steps = [1, 2, 3, 4, 5, 8, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500].filter((k) => k < Math.min(n + 1, all));
  let temperature = 1, topK = null, topP = null, random = seeded(1);
  const raw = pruned(result, 1, null, null).kept;

  const bars = h("ol", { class: "bars playground" });
  const summary = h("p", { class: "where", role: "status" });
  const drawn = h("p", { class: "drawn", "aria-live": "polite" });
  function update() {
    const { kept, rest, survivors, beyond } = pruned(result, temperature, topK, topP);
    const top = Math.max(...kept, rest, 0.001);
    const scale = Math.max(kept[0], raw[0]);
    const rows = range(Math.min(14, n)).map((i) => h("li", { class: kept[i] === 0 ? "cut" : null, "data-token": result.top_tokens[i] },
      h("span", { class: "place" }, String(i + 1)), tokenElement(text(i)), bar(kept[i] / scale, { ghost: raw[i] / scale }),
      h("span", { class: "weight" }, kept[i] === 0 ? "0" : probability(kept[i])), h("span", { class: "score" }, fixed(result.top_logits[i], 2))));
    const others = kept.slice(14).reduce((sum, p) => sum + p, 0) + rest;
    if (all > rows.length) rows.push(h("li", { class: "quiet" }, h("span", {}), h("span", {}, `${(all - rows.length).toLocaleString("en")} others`), bar(others / scale, { tone: "faint" }), h("span", { class: "weight" }, others === 0 ? "0" : probability(others)), h("span", {})));
    bars.replaceChildren(...rows);
    const how = `Temperature ${controls.temperature.text()}, top-k ${controls.topK.text()}, top-p ${controls.topP.text()}: `;
    const shape = temperature === 0 ? "Greedy: always the most likely token." :
      beyond ? `The nucleus reaches beyond the ${n} tokens this page names; all others stay in as one.` :
      rest > 0 ? `All ${all.toLocaleString("en")} tokens may be drawn.` : `${survivors.toLocaleString("en")} of ${all.toLocaleString("en")} tokens may be drawn.`;
    const entropy = -[...kept, rest].reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
    summary.replaceChildren(h("span", { class: "quiet" }, how), shape, h("span", { class: "quiet" }, ` Entropy ${rest > 0 ? "at least " : ""}${fixed(entropy, 2)} nats.`));
    bars.dataset.top = top;
  }
  function draw() {
    const { kept, rest } = pruned(result, temperature, topK, topP);
    let at = random() * (kept.reduce((sum, p) => sum + p, 0) + rest), i = 0;
    while (i < n && at >= kept[i]) at -= kept[i++];
    drawn.append(i < n ? h("span", { class: "chip" }, tokenElement(text(i))) : h("span", { class: "chip quiet" }, "another"));
    while (drawn.children.length > 24) drawn.firstChild.remove();
  }

  const controls = {
    temperature: slider("Temperature", { min: 0, max: 40, value: 20, text: (i) => (i === 0 ? "0, greedy" : (i / 20).toFixed(2)) }, (i) => { temperature = Math.round(i * 5) / 100; update(); }),
    topK: slider("Top-k", { min: 0, max: steps.length, value: steps.length, text: (i) => (i === steps.length ? "off" : String(steps[i])) }, (i) => { topK = i === steps.length ? null : steps[i]; update(); }),
    topP: slider("Top-p", { min: 1, max: 20, value: 20, text: (i) => (i === 20 ? "off" : (i / 20).toFixed(2)) }, (i) => { topP = i === 20 ? null : i / 20; update(); }),
  };
  const reset = () => {
    [temperature, topK, topP, random] = [1, null, null, seeded(1)];
    controls.temperature.set(20);
    controls.topK.set(steps.length);
    controls.topP.set(20);
    drawn.replaceChildren();
    update();
  };
  mount.append(h("p", { class: "prompt" }, result.tokens.slice(-60).map((one) => tokenElement(one)), h("span", { class: "caret", "aria-hidden": "true" })),
    h("div", { class: "columns" },
      h("div", { class: "controls" }, Object.values(controls).map((one) => one.element),
        h("div", { class: "toolbar" }, h("button", { type: "button", class: "solid", onclick: draw }, "Draw a token"), h("button", { type: "button", class: "plain", onclick: reset }, "Reset")), drawn),
      h("div", {}, h("div", { class: "barhead quiet" }, h("span", {}, "token"), h("span", {}, "probability"), h("span", {}, "logit")), bars, summary)),
    h("p", { class: "note" }, `The ${n.toLocaleString("en")} largest logits are stored` + (result.n_rest ? `; the other ${result.n_rest.toLocaleString("en")} tokens enter every temperature exactly, as one sum.` : ", which is the whole vocabulary.") + " The thin line on a bar is temperature 1, nothing cut."));
  update();
  return {
    json: () => result,
    csv: () => { const now = pruned(result, temperature, topK, topP).kept; return result.top_tokens.map((id, i) => ({ token: id, text: result.top_texts[i], logit: result.top_logits[i], probability: raw[i], pruned: now[i] })); },
  };
};
