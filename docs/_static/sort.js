/* Wide tables are sorted by the column whose head is clicked: the largest number first, and the other way at the next click. */
for (const table of document.querySelectorAll(".table-wrapper table:has(td:nth-child(6))")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const number = (text) => parseFloat(text.replaceAll(",", "").replace(/^[^\d+-]*/, ""));
  for (const row of [...body.rows].slice(1)) {
    row.cells[0].textContent ||= row.previousElementSibling.cells[0].textContent; // an empty one repeats the one above
  }
  const sort = (column) => {
    const text = (row) => row.cells[column].textContent.trim();
    const numeric = [...body.rows].every((row) => !text(row) || !isNaN(number(text(row))));
    const down = heads[column].ariaSort ? heads[column].ariaSort === "ascending" : numeric;
    const compare = (a, b) => (numeric ? number(text(a)) - number(text(b)) : text(a).localeCompare(text(b)));
    const empty = (row) => (text(row) ? 0 : 1); // at the end in both directions
    const rows = [...body.rows].sort((a, b) => empty(a) - empty(b) || (empty(a) ? 0 : compare(a, b) * (down ? -1 : 1)));
    body.append(...rows);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].ariaSort = down ? "descending" : "ascending";
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", () => sort(column));
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort(column));
  });
}
