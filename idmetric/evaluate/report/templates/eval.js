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
    if (body.dataset.unfolded) fold(body);
  }

  // of a long list only the first lines that fit the filters are shown, in whatever order they are
  const filter = document.getElementById("filter"), method = document.getElementById("method");

  function fold(list) {
    const text = filter.value.trim().toLowerCase(), few = Number(list.dataset.unfolded), open = "open" in list.dataset;
    let count = 0;
    for (const item of list.children) {
      const fits = (!method?.value || [undefined, method.value].includes(item.dataset.method))
        && item.textContent.toLowerCase().includes(text);
      item.hidden = !fits || (!open && count >= few);
      count += fits;
    }
    const button = list.closest("section").querySelector("button.more");
    button.hidden = count <= few;
    button.textContent = open ? `Show the first ${few}` : `Show all ${count}`;
    button.setAttribute("aria-expanded", open);
  }

  const lists = [...document.querySelectorAll("[data-unfolded]")];
  for (const list of lists) {
    list.closest("section").querySelector("button.more").addEventListener("click", () => {
      if ("open" in list.dataset) delete list.dataset.open;
      else list.dataset.open = "";
      fold(list);
    });
    fold(list);
  }
  if (lists.length) document.getElementById("choose").hidden = false;
  for (const one of [filter, method]) one?.addEventListener("input", () => lists.forEach(fold));

  const model = document.getElementById("model");
  if (model) {
    const choose = () => {
      for (const part of document.querySelectorAll("[data-model]")) part.hidden = part.dataset.model !== model.value;
    };
    model.closest("p").hidden = false;
    model.addEventListener("change", choose);
  }

  if (model) model.dispatchEvent(new Event("change"));

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
