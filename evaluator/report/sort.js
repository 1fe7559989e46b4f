// The headline: a click on a heading sorts its rows, those of one task among each other. Missing values stay last.
"use strict";
(() => {
  const table = document.querySelector("#headline table");
  if (!table) return;
  const headings = [...table.tHead.rows[0].cells];
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const isMissing = (value) => value === "" || Number.isNaN(value);
  function compare(one, other) {
    if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
    return typeof one === "number" ? one - other : one.localeCompare(other);
  }
  function sort(column, descending) {
    const body = table.tBodies[0];
    const groups = [[]]; // the heading of a task, then its rows
    for (const row of body.rows) {
      if (row.cells.length === 1) groups.push([row]);
      else groups.at(-1).push(row);
    }
    for (const group of groups) {
      const rows = group.filter((row) => row.cells.length > 1);
      rows.sort((one, other) => {
        const values = [valueOf(one, column), valueOf(other, column)];
        const turned = descending && !values.some(isMissing) ? -1 : 1;
        return turned * compare(...values);
      });
      body.append(...group.filter((row) => row.cells.length === 1), ...rows);
    }
    headings.forEach((heading, at) => {
      if (at === column) heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
  }
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => {
      const sorted = heading.getAttribute("aria-sort");
      sort(column, sorted ? sorted === "ascending" : heading.classList.contains("n"));
    });
    heading.replaceChildren(button);
  });
})();
