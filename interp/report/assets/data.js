// Data in and out: results lie in the page as JSON and packed arrays; buttons copy them as JSON and CSV.

const payload = (id) => JSON.parse(document.getElementById(id).textContent);

/** Bytes of a packed array: base64 of deflate. */
async function unpack(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Rows of equal objects as CSV. A text that a spreadsheet would run as a formula gets an apostrophe; a lone sign is none. */
function toCsv(rows) {
  if (rows.length === 0) return "";
  const quote = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^([=+\-@].|[\t\r])/su.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const names = Object.keys(rows[0]);
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

/** Copy text; returns whether it was copied. A page that may not use the clipboard (a frame) asks the old way. */
async function copied(text) {
  const allowed = document.featurePolicy?.allowsFeature("clipboard-write") ?? true; // asking in vain logs an error
  if (navigator.clipboard && allowed) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* refused: the old way remains */ }
  }
  const box = h("textarea", { class: "offscreen", "aria-hidden": "true" });
  const before = document.activeElement;
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  before?.focus({ preventScroll: true });
  return done;
}

/** The two buttons under a view; `source` gives {json(), csv()} of what is shown. */
function copyButtons(source) {
  const said = h("span", { class: "quiet", "aria-live": "polite" });
  const box = h("textarea", { class: "uncopied", readonly: true, hidden: true, rows: 6, "aria-label": "The text to copy" });
  async function copy(text) {
    const done = await copied(text);
    said.textContent = done ? "Copied." : "This page may not use the clipboard; the text is in the box.";
    box.hidden = done;
    box.value = done ? "" : text;
    if (!done) box.select();
    else setTimeout(() => { said.textContent = ""; }, 2500);
  }
  const button = (text, make) => h("button", { type: "button", class: "plain", onclick: () => copy(make()) }, text);
  return h("div", { class: "copy" },
    button("Copy JSON", () => JSON.stringify(source.json(), null, 1)),
    button("Copy CSV", () => toCsv(source.csv())), said, box);
}
