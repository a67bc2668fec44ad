// Sortable tables and horizontal bars.

const PAGE = 200; // rows added at a time: a browser lays out some hundreds at once, not thousands

/**
 * A table whose headers sort it. `columns`: {name, title, cell(row), key(row), numeric, note}; rows are any values.
 * `limit` rows are shown at first, more of them on request. What the columns' notes explain stands below.
 */
function sortable(columns, rows, { limit = 12, order = null, marked = () => false } = {}) {
  let by = order, descending = true, sorted = rows;
  const body = h("tbody");
  const more = h("button", { type: "button", class: "plain", hidden: rows.length <= limit, onclick: () => (shown() < rows.length ? grow(PAGE) : fill()) });
  const shown = () => body.childElementCount;
  const headers = columns.map((column) => {
    const button = h("button", { type: "button", onclick: () => sort(column.name) }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }));
    return h("th", { scope: "col", class: column.numeric ? "number" : null }, column.key ? button : column.title);
  });
  function sort(name) {
    const numeric = columns.find((column) => column.name === name).numeric;
    descending = by === name ? !descending : Boolean(numeric);
    by = name;
    fill();
  }
  function fill() {
    const column = columns.find((one) => one.name === by);
    sorted = [...rows];
    if (column) {
      sorted.sort((a, b) => {
        const [x, y] = [column.key(a), column.key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -1 : x > y ? 1 : 0) * (descending ? -1 : 1);
      });
    }
    headers.forEach((header, i) => {
      const on = columns[i].name === by;
      header.setAttribute("aria-sort", on ? (descending ? "descending" : "ascending") : "none");
    });
    body.replaceChildren();
    grow(limit);
  }
  function grow(count) {
    body.append(...sorted.slice(shown(), shown() + count).map((row) => h("tr", { class: marked(row) ? "marked" : null },
      columns.map((column, i) => h(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: column.numeric ? "number" : null }, column.cell(row))))));
    const left = rows.length - shown();
    more.textContent = left === 0 ? "Show fewer" : left > PAGE ? `Show ${PAGE} more of ${rows.length.toLocaleString("en")}` : `Show all ${rows.length.toLocaleString("en")}`;
  }
  fill();
  const noted = columns.filter((column) => column.note);
  const notes = noted.length ? h("p", { class: "note" }, noted.flatMap((column, i) => [i ? "; " : "", h("b", {}, column.title), `: ${column.note}`]), ".") : null;
  return h("div", {}, h("div", { class: "scroll" }, h("table", { class: "data" }, h("thead", {}, h("tr", {}, headers)), body)), more, notes);
}

/** A bar from 0 to `share`, 0 to 1; below 0 it grows to the left of the middle when `centred`. */
function bar(share, { centred = false, ghost = null, tone = "" } = {}) {
  const size = Math.min(1, Math.abs(share)) * (centred ? 50 : 100);
  const left = centred ? (share < 0 ? 50 - size : 50) : 0;
  const fill = h("span", { class: "fill " + (centred && share > 0 ? "warm" : tone), style: { left: `${left}%`, width: `${size}%` } });
  const mark = ghost === null ? null : h("span", { class: "ghost", style: { left: `${100 * Math.min(1, ghost)}%` } });
  return h("span", { class: centred ? "bar centred" : "bar", "aria-hidden": "true" }, fill, mark);
}
