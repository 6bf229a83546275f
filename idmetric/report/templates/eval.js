"use strict";
(() => {
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  for (const img of document.querySelectorAll("img[data-picture]")) {
    if (img.dataset.picture in pictures) img.src = pictures[img.dataset.picture];
    else img.replaceWith(Object.assign(document.createElement("span"), { className: "dim", textContent: "no picture" }));
  }

  const names = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;

  function sort(table, column, way) {
    const body = table.tBodies[0], rows = [...body.rows];
    const numeric = table.tHead.rows[0].cells[column].classList.contains("number");
    rows.sort((a, b) => {
      const x = value(a, column), y = value(b, column);
      if (!numeric) return way * names.compare(x, y);
      const [p, q] = [Number(x), Number(y)];
      if (Number.isNaN(p) || Number.isNaN(q)) return Number.isNaN(p) - Number.isNaN(q);  // what is not there comes last
      return way * (p - q);
    });
    body.append(...rows);
    fold(table);
  }

  // only the first lines of a long list are shown, in whatever order they are
  function fold(table) {
    const shown = table.dataset.open ? Infinity : Number(table.dataset.unfolded ?? Infinity);
    [...table.tBodies[0].rows].forEach((row, k) => { row.hidden = k >= shown; });
  }

  for (const button of document.querySelectorAll("button.more")) {
    const table = button.parentElement.querySelector("table"), all = button.textContent;
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "false";
      button.setAttribute("aria-expanded", open);
      button.textContent = open ? `Show the first ${table.dataset.unfolded}` : all;
      if (open) table.dataset.open = "yes";
      else delete table.dataset.open;
      fold(table);
    });
    fold(table);
  }

  const chooser = document.getElementById("choose");
  if (chooser) {
    const wanted = [...chooser.querySelectorAll("select")];  // their ids are the names of the sections' data
    const choose = () => {
      for (const part of document.querySelectorAll("section[data-model]")) {
        part.hidden = wanted.some((one) => part.dataset[one.id] !== one.value);
      }
    };
    chooser.hidden = false;
    for (const one of wanted) one.addEventListener("change", choose);
    choose();
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", next);
      sort(table, column, next === "ascending" ? 1 : -1);
    }));
  }
})();
