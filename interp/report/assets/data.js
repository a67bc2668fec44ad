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

/** Rows of equal objects as CSV. */
function toCsv(rows) {
  if (rows.length === 0) return "";
  const quote = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const names = Object.keys(rows[0]);
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

/** Copy text; where the page may not (an old browser), select it in a box instead. */
async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

/** The two buttons under a view; `source` gives {json(), csv()} of what is shown. */
function copyButtons(source) {
  const button = (text, make) => h("button", { type: "button", class: "plain", onclick: (event) => copy(make(), event.currentTarget) }, text);
  return h("div", { class: "copy" },
    button("Copy JSON", () => JSON.stringify(source.json(), null, 1)),
    button("Copy CSV", () => toCsv(source.csv())));
}
