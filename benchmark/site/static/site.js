"use strict";
// Sorts and filters tables, and hides rows that were not run; without this script, tables are shown in full.

const collator = new Intl.Collator("en", { numeric: true });

function sortable(cell) {
  const value = cell.dataset.value ?? cell.textContent.trim();
  const number = value === "" ? NaN : Number(value);
  return { value, number, empty: value === "" };
}

function compare(a, b, direction) {
  if (a.empty || b.empty) return a.empty - b.empty; // empty cells come last in both directions
  const bothNumbers = !Number.isNaN(a.number) && !Number.isNaN(b.number);
  return direction * (bothNumbers ? a.number - b.number : collator.compare(a.value, b.value));
}

function sortBy(button) {
  const head = button.closest("th");
  const table = head.closest("table");
  const body = table.tBodies[0];
  const column = [...head.parentElement.children].indexOf(head);
  const rows = [...body.rows].map((row) => ({ row, key: sortable(row.children[column]) }));
  const numbers = rows.some(({ key }) => !Number.isNaN(key.number));
  const before = head.getAttribute("aria-sort");
  const ascending = before ? before === "descending" : !numbers; // numbers start with the largest
  rows.sort((a, b) => compare(a.key, b.key, ascending ? 1 : -1));
  body.append(...rows.map(({ row }) => row));
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

function filterRows(target) {
  const search = document.querySelector(`[data-filter="${target}"]`);
  const match = document.querySelector(`[data-match="${target}"]`);
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...document.querySelectorAll(`#${target} tbody tr`)];
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const named = words.every((word) => text.includes(word));
    row.hidden = !named || Boolean(match && match.value && match.value !== row.dataset.key);
  }
  const shown = rows.filter((row) => row.offsetParent !== null).length;
  document.querySelector(`[data-found="${target}"]`).textContent = `${shown} rows`;
}

for (const button of document.querySelectorAll("button[data-sort]")) {
  button.addEventListener("click", () => sortBy(button));
}
for (const input of document.querySelectorAll("[data-filter], [data-match]")) {
  input.addEventListener("input", () => filterRows(input.dataset.filter ?? input.dataset.match));
}
const onlyRun = document.getElementById("only-run");
if (onlyRun) {
  const apply = () => document.getElementById("tables").classList.toggle("only-run", onlyRun.checked);
  onlyRun.addEventListener("change", () => {
    apply();
    filterRows("tables");
  });
  apply(); // browsers may restore the checkbox's state
}
