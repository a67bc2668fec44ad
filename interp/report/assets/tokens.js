// Tokens as people can read them: what has no ink is written out, emoji stay whole. Only marks that common fonts have.

const WRITTEN = { " ": "␣", "\n": "↵", "\t": "⇥" };
const INKLESS = /^[\p{C}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}]$/u;
const PICTURE = "\\p{Extended_Pictographic}[\\uFE0F\\p{Emoji_Modifier}]?";
const BYTES = "⟨(?:[0-9A-F]{2}(?: [0-9A-F]{2})*|#\\d+)⟩"; // what stands for a fragment of a character
const PIECES = new RegExp(`${BYTES}|${PICTURE}(?:\\u200D${PICTURE})*|\\p{RI}{2}|[0-9#*]\\uFE0F\\u20E3|.`, "gsu");

/** A token piece by piece: {text, mark}; a mark stands for what it is not. */
function pieces(token) {
  if (token === "") return [{ text: "∅", mark: true }];
  return token.match(PIECES).map((piece, i) => {
    if (WRITTEN[piece]) return { text: WRITTEN[piece], mark: true };
    if (INKLESS.test(piece)) return { text: `⟨U+${piece.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`, mark: true };
    if (i === 0 && /^\p{M}/u.test(piece)) return { text: "◌" + piece, mark: false };
    return { text: piece, mark: piece.length > 1 && piece.startsWith("⟨") };
  });
}

const readable = (token) => pieces(token).map((piece) => piece.text).join("");

/** A text of several words on one line: as readable, but its spaces are spaces. */
const line = (text) => readable(text).replaceAll("␣", " ");

/** The beginning of a token, in whole pieces. */
function brief(token, longest) {
  let out = "";
  for (const { text } of pieces(token)) {
    if ((out + text).length > longest) return (out || text.slice(0, longest - 1)) + "…";
    out += text;
  }
  return out;
}

/** A token's text; with its id where the text is no whole character, so that two such tokens differ. */
const named = (text, id) => (text.includes("\ufffd") ? `${text}⟨#${id}⟩` : text);

/** A token as an element: isolated from the direction of what stands around it, its marks in a lighter ink. */
function tokenElement(token) {
  const element = h("bdi", { class: /\S/u.test(token) ? "token" : "token blank", dir: "auto" });
  let plain = "", length = 0;
  for (const { text, mark } of pieces(token)) {
    length += text.length;
    if (!mark) { plain += text; continue; }
    element.append(plain, h("span", { class: "mark" }, text));
    plain = "";
  }
  element.append(plain);
  if (length > 20) {
    element.classList.add("long"); // narrow places cut it off
    element.title = element.textContent;
  }
  return element;
}
