/* The page of every row: one table at a time, sorted by a column, narrowed by words. */
(() => {
  const place = document.getElementById("rows");
  if (!place) return;
  const tables = JSON.parse(document.getElementById("rows-data").textContent);
  const make = (name, text, parent, inputs = {}) =>
    parent.appendChild(Object.assign(document.createElement(name), { textContent: text }, inputs));
  const chooser = make("select", "", place, { ariaLabel: "table" });
  tables.forEach((table, index) => make("option", `${table.title} (${table.rows.length})`, chooser, { value: index }));
  const words = make("input", "", place, { type: "search", placeholder: "words to look for", ariaLabel: "words" });
  const count = make("p", "", place, { ariaLive: "polite" });
  const scroll = make("div", "", place, { tabIndex: 0, role: "region", ariaLabel: "rows" });
  const value = (cell) => (typeof cell === "number" ? cell : parseFloat(String(cell).replace(/[,+±]/g, "")));
  const MOST = 500;
  let column = -1, down = false;
  const show = () => {
    const table = tables[chooser.value];
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = table.rows.filter((row) => wanted.every((word) => row.join(" ").toLowerCase().includes(word)));
    if (column >= 0) {
      const numbers = rows.every((row) => row[column] === "" || !Number.isNaN(value(row[column])));
      const order = (a, b) =>
        numbers ? (value(a) || 0) - (value(b) || 0) : String(a).localeCompare(String(b));
      rows.sort((a, b) => (down ? -1 : 1) * order(a[column], b[column]));
    }
    count.textContent = rows.length > MOST ? `${rows.length} rows; the first ${MOST} are shown` : `${rows.length} rows`;
    scroll.replaceChildren();
    const drawn = make("table", "", scroll);
    const head = make("tr", "", make("thead", "", drawn));
    table.columns.forEach((name, index) => {
      const cell = make("th", "", head, { scope: "col" });
      cell.setAttribute("aria-sort", index !== column ? "none" : down ? "descending" : "ascending");
      const mark = index === column ? (down ? " ▼" : " ▲") : "";
      make("button", name + mark, cell, { type: "button" }).onclick = () => {
        down = index === column && !down;
        column = index;
        show();
      };
    });
    const body = make("tbody", "", drawn);
    for (const row of rows.slice(0, MOST)) {
      const line = make("tr", "", body);
      row.forEach((cell) => make("td", typeof cell === "number" ? cell.toLocaleString("en") : cell, line));
    }
  };
  chooser.onchange = () => { column = -1; show(); };
  words.oninput = show;
  show();
})();
