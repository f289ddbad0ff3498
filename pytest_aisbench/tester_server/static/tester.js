"use strict";
// Everything works without this; it makes reading quicker.
const root = document.documentElement;
const kept = localStorage.getItem("theme");
if (kept) root.dataset.theme = kept;

document.addEventListener("DOMContentLoaded", () => {
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });

  const search = document.querySelector("input[type=search]");
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && search && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
      event.preventDefault();
      search.focus();
    }
  });

  const compare = document.getElementById("compare");
  if (compare) {
    const button = compare.querySelector("button");
    const chosen = (side) => (compare.querySelector(`input[name=${side}]:checked`) || {}).value;
    const judge = () => { button.disabled = !chosen("a") || !chosen("b") || chosen("a") === chosen("b"); };
    compare.addEventListener("change", judge);
    judge();
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      const body = table.tBodies[0];
      if (!head.textContent.trim() || body.querySelector(`td:nth-child(${index + 1}) input`)) return;
      head.classList.add("sorts");
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const numbers = head.classList.contains("n");
        const value = (row) => {
          const cell = row.cells[index];
          const text = "value" in cell.dataset ? cell.dataset.value : cell.textContent.trim();
          if (!numbers) return text;
          const number = text === "" ? NaN : parseFloat(text.replace(/^[≥≤ ]+/, ""));
          return Number.isNaN(number) ? null : number;
        };
        const order = (a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === null || y === null) return (x === null) - (y === null);  // what was not measured stays below
          return (down ? -1 : 1) * (numbers ? x - y : x.localeCompare(y));
        };
        body.append(...[...body.rows].sort(order));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }
});
