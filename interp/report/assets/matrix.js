// A grid of coloured cells on a canvas, for any number of cells: hover, tap or the arrow keys choose one.

/**
 * options: rows, columns; colour(r, c) -> [r, g, b] or null for a hatched cell; describe(r, c) -> text or element;
 * rowLabel(r), columnLabel(c); text(r, c) shown where it fits every cell; picked(r, c) when one is chosen; framed(r, c);
 * dotted(r, c): there is more to see of this cell;
 * cell: the largest side of a cell; square: cells as high as wide; label: what the grid is; start: [r, c] chosen at first.
 */
function matrix(options) {
  const { rows, columns, label, cell: widestCell = 34, least = 1, square = true } = options;
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": label });
  const readout = h("p", { class: "readout", role: "status" }, options.hint ?? "Point at a cell, or use the arrow keys.");
  const holder = h("div", { class: "matrix" }, canvas);
  const element = h("div", { class: "matrix-box" }, holder, readout);
  const font = "11px ui-sans-serif, system-ui, sans-serif";
  let size = { w: 1, h: 1 }, left = 0, top = 0, at = null, ratio = 1, measured = 0, written = false;

  function measure() {
    measured = holder.clientWidth;
    const context = canvas.getContext("2d");
    context.font = font;
    const widest = (count, text) => (text ? Math.max(0, ...range(Math.min(count, 400)).map((i) => context.measureText(text(i)).width)) : 0);
    left = options.rowLabel ? Math.ceil(Math.min(110, widest(rows, options.rowLabel)) + 8) : 0;
    const available = Math.max(80, holder.clientWidth - left - 1);
    const w = Math.max(least, Math.min(widestCell, available / columns));
    size = { w, h: square ? w : Math.max(14, Math.min(widestCell, options.height ?? 24)) };
    const texts = options.text && size.w >= 20 && rows * columns <= 4000; // in every cell, or in none: a blank is no number
    written = texts && range(rows).every((r) => range(columns).every((c) => context.measureText(options.text(r, c)).width <= size.w - 4));
    const across = options.columnLabel ? widest(columns, options.columnLabel) : 0;
    top = options.columnLabel ? (across + 6 <= w ? 18 : Math.ceil(Math.min(90, across) + 8)) : 0;
  }

  function draw() {
    if (!holder.clientWidth) return;
    const fresh = holder.clientWidth !== measured;
    if (fresh) measure();
    const width = Math.ceil(left + size.w * columns) + 1, height = Math.ceil(top + size.h * rows) + 1;
    ratio = Math.min(2, window.devicePixelRatio || 1);
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.dataset.written = Boolean(written);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    if (size.w < 3) drawDense(context);
    else drawCells(context);
    drawColumnLabels(context);
    drawCursor(context);
    drawRowLabels(context, height);
    if (fresh) reveal();
  }

  /** More cells than room to see one: every pixel takes the strongest of its cells. */
  function drawDense(context) {
    const w = Math.max(1, Math.round(size.w * columns)), tall = Math.max(1, Math.round(size.h * rows));
    options.dense(context, left, top, w, tall);
  }

  function drawCells(context) {
    const gap = size.w > 9 ? 1 : 0;
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const colour = options.colour(r, c);
        const [x, y] = [left + c * size.w, top + r * size.h];
        if (colour === null) {
          context.fillStyle = token("--hidden");
          context.fillRect(x, y, size.w - gap, size.h - gap);
          continue;
        }
        context.fillStyle = css(colour);
        context.fillRect(x, y, size.w - gap, size.h - gap);
        const text = written ? options.text(r, c) : "";
        if (text) {
          context.fillStyle = inkOn(colour);
          context.font = font;
          context.textAlign = "center";
          context.textBaseline = "middle";
          context.fillText(text, x + (size.w - gap) / 2, y + (size.h - gap) / 2 + 0.5);
        }
        if (options.framed?.(r, c)) {
          context.strokeStyle = token("--warm");
          context.lineWidth = 2;
          context.strokeRect(x + 1, y + 1, size.w - gap - 2, size.h - gap - 2);
        }
        if (options.dotted?.(r, c)) {
          context.fillStyle = inkOn(colour);
          context.beginPath();
          context.arc(x + size.w - gap - 6, y + 6, Math.min(2.5, size.w / 6), 0, 2 * Math.PI);
          context.fill();
        }
      }
    }
  }

  /** Names of the rows, at the left of what is in sight: a wide grid scrolls under them. */
  function drawRowLabels(context, height) {
    if (!options.rowLabel) return;
    const from = holder.scrollLeft;
    if (from > 0) {
      context.fillStyle = token("--card");
      context.fillRect(from, 0, left, height);
    }
    context.font = font;
    context.fillStyle = token("--quiet");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(13 / size.h));
    for (let r = 0; r < rows; r += every) context.fillText(options.rowLabel(r), from + left - 6, top + (r + 0.5) * size.h, left - 6);
  }

  function drawColumnLabels(context) {
    if (!options.columnLabel) return;
    context.font = font;
    context.fillStyle = token("--quiet");
    const upright = top === 18;
    const every = Math.max(1, Math.ceil((upright ? 24 : 13) / size.w));
    for (let c = 0; c < columns; c += every) {
      context.save();
      context.translate(left + (c + 0.5) * size.w, top - 5);
      if (!upright) context.rotate(-Math.PI / 2);
      context.textAlign = upright ? "center" : "left";
      context.textBaseline = upright ? "bottom" : "middle";
      context.fillText(options.columnLabel(c), 0, 0, upright ? size.w * every : 86);
      context.restore();
    }
  }

  function drawCursor(context) {
    if (options.row?.() !== undefined && options.row() !== null) {
      context.strokeStyle = token("--accent");
      context.lineWidth = 1.5;
      context.strokeRect(left - 0.5, top + options.row() * size.h - 0.5, size.w * columns, Math.max(2, size.h));
    }
    if (!at) return;
    context.strokeStyle = token("--ink");
    context.lineWidth = 2;
    context.strokeRect(left + at.c * size.w - 1, top + at.r * size.h - 1, Math.max(3, size.w) + 1, Math.max(3, size.h) + 1);
  }

  function choose(r, c, picked) {
    at = { r: clamp(r, 0, rows - 1), c: clamp(c, 0, columns - 1) };
    readout.replaceChildren(options.describe(at.r, at.c));
    if (picked) options.picked?.(at.r, at.c);
    requestAnimationFrame(draw);
  }

  /** Bring the chosen cell into view: sideways in the matrix's own box, and for who moves by keys in the window too. */
  function reveal({ inWindow = false } = {}) {
    if (!at) return;
    const x = left + at.c * size.w, y = top + at.r * size.h;
    if (x < holder.scrollLeft + left || x + size.w > holder.scrollLeft + holder.clientWidth) holder.scrollLeft = x + (size.w - holder.clientWidth) / 2;
    const above = canvas.getBoundingClientRect().top + y;
    if (inWindow && (above < 0 || above + size.h > innerHeight)) window.scrollBy({ top: above - innerHeight / 2, behavior: "instant" });
  }

  function cellUnder(event) {
    const box = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - left) / size.w), r = Math.floor((event.clientY - box.top - top) / size.h);
    return r >= 0 && c >= 0 && r < rows && c < columns ? { r, c } : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const cell = cellUnder(event);
    if (cell && (cell.r !== at?.r || cell.c !== at?.c)) choose(cell.r, cell.c, false);
  });
  canvas.addEventListener("click", (event) => {
    const cell = cellUnder(event);
    if (cell) choose(cell.r, cell.c, true);
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns], End: [0, columns], PageUp: [-10, 0], PageDown: [10, 0] };
    const now = at ?? { r: options.row?.() ?? 0, c: 0 };
    if (event.key === "Enter" || event.key === " ") choose(now.r, now.c, true);
    else if (moves[event.key]) choose(now.r + (at ? moves[event.key][0] : 0), now.c + (at ? moves[event.key][1] : 0), false);
    else return;
    event.preventDefault();
    reveal({ inWindow: true });
  });
  holder.addEventListener("scroll", () => requestAnimationFrame(draw));
  if (options.start) choose(...options.start, false);
  redrawn(holder, draw);
  return { element, draw, choose, cell: () => ({ ...size, left, top, written }) };
}
