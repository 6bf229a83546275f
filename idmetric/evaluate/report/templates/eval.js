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
      charts.forEach(place);
    };
    model.closest("p").hidden = false;
    model.addEventListener("change", choose);
  }

  // labels of a chart: near their point, and on no other label; if there is room, on no point or interval either
  const charts = [...document.querySelectorAll(".chart")];
  const SIDES = [[1, 0], [-1, 0], [0, -1], [0, 1], [1, -1], [1, 1], [-1, -1], [-1, 1]], FAR = [10, 16, 24, 34, 46, 60, 80, 105, 135, 170];
  const boxes = (chart, which) => [...chart.querySelectorAll(which)].map((one) => one.getBoundingClientRect());
  const apart = (a, b, by) => a.right + by < b.left || b.right + by < a.left || a.bottom + by < b.top || b.bottom + by < a.top;

  function place(chart) {
    const room = chart.getBoundingClientRect(), plot = chart.querySelector(".plot").getBoundingClientRect();
    const leads = chart.querySelector(".leads"), labels = boxes(chart, "small.taken"), points = boxes(chart, ".point"), spreads = boxes(chart, ".spread");
    leads.replaceChildren();
    for (const label of chart.querySelectorAll(".label")) {
      const { width, height } = label.getBoundingClientRect(), own = label.parentElement.querySelector(".point").getBoundingClientRect();
      const x = (own.left + own.right) / 2, y = (own.top + own.bottom) / 2;
      const places = FAR.flatMap((far) => SIDES.map(([dx, dy]) => {
        const left = x + dx * far + (dx - 1) * width / 2, top = y + dy * far + (dy - 1) * height / 2;
        return { left, top, right: left + width, bottom: top + height, far };
      })).filter((one) => one.left >= room.left && one.right <= room.right && one.top >= room.top && one.bottom <= plot.bottom);
      const free = places.filter((one) => labels.every((other) => apart(one, other, 1)));
      const others = points.filter((one) => one.left !== own.left || one.top !== own.top);
      const clear = free.filter((one) => others.every((other) => apart(one, other, 12)));  // nearest to its own point
      const best = clear.find((one) => spreads.every((other) => apart(one, other, 0))) ?? clear[0] ?? free[0] ?? places[0];
      if (!best) continue;
      labels.push(best);
      Object.assign(label.style, { left: `${best.left - plot.left}px`, top: `${best.top - plot.top}px`, bottom: "auto", transform: "none" });
      if (best.far < 24) continue;
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const ends = { x1: x, y1: y, x2: Math.min(Math.max(x, best.left), best.right), y2: Math.min(Math.max(y, best.top), best.bottom) };
      for (const [name, at] of Object.entries(ends)) line.setAttribute(name, at - (name[0] === "x" ? plot.left : plot.top));
      leads.append(line);
    }
  }

  if (model) model.dispatchEvent(new Event("change"));
  else charts.forEach(place);
  window.addEventListener("resize", () => charts.forEach(place));

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
