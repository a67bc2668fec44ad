// Attribution patching beside exact patching: every cell's estimated and exact effect.

views.comparison = async (mount, data) => {
  const { result, summary } = data;
  const most = largest([...result.exact, ...result.estimated]) || 1;
  const rows = result.cells.map((name, i) => ({ name, i, exact: result.exact[i], estimated: result.estimated[i] }));
  const number = (value) => h("span", { class: "withbar" }, bar(value / most, { centred: true }), signed(value));
  mount.append(h("p", { class: "takeover" }, `${summary}.`),
    h("div", { class: "strongest" }, sortable([
      { name: "cell", title: "cell", cell: (row) => row.name, key: (row) => row.i },
      { name: "exact", title: `exact, ${result.unit}`, numeric: true, cell: (row) => number(row.exact), key: (row) => Math.abs(row.exact) },
      { name: "estimated", title: "estimated", numeric: true, cell: (row) => number(row.estimated), key: (row) => Math.abs(row.estimated) },
      { name: "difference", title: "difference", numeric: true, cell: (row) => signed(row.estimated - row.exact), key: (row) => Math.abs(row.estimated - row.exact) },
    ], rows, { limit: 15, order: "exact" })));
  return { json: () => result, csv: () => rows.map(({ name, exact, estimated }) => ({ cell: name, exact, estimated })) };
};
