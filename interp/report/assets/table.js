// Sortable tables and horizontal bars.

/**
 * A table whose headers sort it. `columns`: {name, title, cell(row), key(row), numeric, note}; rows are any values.
 * `limit` rows are shown at first, all of them on request.
 */
function sortable(columns, rows, { limit = 12, order = null, marked = () => false } = {}) {
  let by = order, descending = true, all = rows.length <= limit;
  const body = h("tbody");
  const more = h("button", { type: "button", class: "plain", onclick: () => { all = true; fill(); } });
  const headers = columns.map((column) => {
    const button = h("button", { type: "button", onclick: () => sort(column.name) }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }));
    return h("th", { scope: "col", class: column.numeric ? "number" : null, title: column.note }, column.key ? button : column.title);
  });
  function sort(name) {
    const numeric = columns.find((column) => column.name === name).numeric;
    descending = by === name ? !descending : Boolean(numeric);
    by = name;
    fill();
  }
  function fill() {
    const column = columns.find((one) => one.name === by);
    const sorted = [...rows];
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
    const shown = all ? sorted : sorted.slice(0, limit);
    body.replaceChildren(...shown.map((row) => h("tr", { class: marked(row) ? "marked" : null },
      columns.map((column, i) => h(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: column.numeric ? "number" : null }, column.cell(row))))));
    more.hidden = all;
    more.textContent = `Show all ${rows.length}`;
  }
  fill();
  return h("div", { class: "scroll" }, h("table", { class: "data" }, h("thead", {}, h("tr", {}, headers)), body), more);
}

/** A bar from 0 to `share`, 0 to 1; below 0 it grows to the left of the middle when `centred`. */
function bar(share, { centred = false, ghost = null, tone = "" } = {}) {
  const size = Math.min(1, Math.abs(share)) * (centred ? 50 : 100);
  const left = centred ? (share < 0 ? 50 - size : 50) : 0;
  const fill = h("span", { class: "fill " + (centred && share > 0 ? "warm" : tone), style: { left: `${left}%`, width: `${size}%` } });
  const mark = ghost === null ? null : h("span", { class: "ghost", style: { left: `${100 * Math.min(1, ghost)}%` } });
  return h("span", { class: centred ? "bar centred" : "bar", "aria-hidden": "true" }, fill, mark);
}
