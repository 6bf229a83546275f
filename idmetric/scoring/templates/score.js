"use strict";
// images, threshold, filter and order
(() => {
  const $ = (id) => document.getElementById(id);
  const list = $("cards"), strip = $("strip");
  const low = Number(strip.dataset.low), high = Number(strip.dataset.high);
  const dots = [...strip.querySelectorAll(".dots i")];
  const number = (text) => (text === undefined ? NaN : Number(text));
  const cards = [...list.children].map((el, k) => ({
    el, dot: dots[k], state: el.querySelector(".state"),
    rank: Number(el.dataset.rank), name: el.dataset.name, path: el.dataset.path,
    distance: number(el.dataset.distance), probability: number(el.dataset.probability),
    copy: el.dataset.copy === "1", itself: "itself" in el.dataset,
    reference: Number(el.dataset.reference), pass: false, shown: true,
  }));
  const lost = [...document.querySelectorAll(".lost li")];

  if (matchMedia("(min-width: 1000px)").matches) $("references").open = true;  // they have their own column

  for (const card of cards) {  // the picture is in the page once, among the references
    const inset = card.el.querySelector(".inset");
    if (inset) { inset.src = $("r" + card.reference).src; inset.hidden = false; }
  }

  // Threshold

  const cut = (value) => 100 * Math.min(1, Math.max(0, (value - low) / (high - low)));

  function setThreshold(value, from) {
    if (!Number.isFinite(value)) return;
    const within = cards.filter((card) => card.distance <= value);
    for (const card of cards) {
      card.pass = Boolean(card.state) && card.distance <= value;  // a copy neither passes nor fails
      card.el.classList.toggle("pass", card.pass);
      card.dot.classList.toggle("pass", card.pass);
      if (card.state) card.state.textContent = card.pass ? "pass" : "fail";
    }
    const passes = cards.filter((card) => card.pass).length, judged = cards.filter((card) => card.state).length;
    const copied = judged < cards.length ? `; with copies ${within.length} of ${cards.length}` : "";
    document.documentElement.classList.remove("undecided");
    for (const option of $("status").options) option.disabled = false;
    document.documentElement.style.setProperty("--cut", cut(value) + "%");
    $("passes").textContent = `${passes} of ${judged}`;
    const chip = document.querySelector(".chip");
    const source = chip && Number(chip.dataset.threshold) === value ? ` (${chip.dataset.label})` : "";
    $("count").textContent = `${passes} of ${judged} pass at ${value.toFixed(4)}${source}${copied}`;
    if (from !== "slider") $("slider").value = String(value);
    if (from !== "number") $("threshold").value = value.toFixed(4);
    $("slider").setAttribute("aria-valuetext", `${value.toFixed(4)}: ${passes} of ${judged} pass`);
    if (chip) chip.setAttribute("aria-pressed", String(Number(chip.dataset.threshold) === value));
    update();
  }

  $("slider").addEventListener("input", (e) => setThreshold(Number(e.target.value), "slider"));
  $("threshold").addEventListener("input", (e) => e.target.value !== "" && setThreshold(Number(e.target.value), "number"));
  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => setThreshold(Number(chip.dataset.threshold)));
  }

  // Filter and sort

  const names = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const nothingLast = (x, y, order) => (Number.isNaN(x) ? (Number.isNaN(y) ? 0 : 1) : Number.isNaN(y) ? -1 : order * (x - y));
  const ORDERS = {
    distance: (a, b, way) => nothingLast(a.distance, b.distance, way),
    name: (a, b, way) => way * (names.compare(a.name, b.name) || names.compare(a.path, b.path)),
    probability: (a, b, way) => nothingLast(a.probability, b.probability, -way),  // surest first
  };

  function sort() {
    const way = $("reverse").getAttribute("aria-pressed") === "true" ? -1 : 1;
    const order = ORDERS[$("sort").value];
    cards.sort((a, b) => order(a, b, way) || a.rank - b.rank);
    list.append(...cards.map((card) => card.el));
  }

  function update() {
    const text = $("filter").value.trim().toLowerCase(), status = $("status").value;
    let shown = 0;
    for (const card of cards) {
      const right = { all: true, pass: card.pass, fail: card.state && !card.pass, copy: card.copy, itself: card.itself,
        unreadable: false }[status];
      card.shown = right && card.path.toLowerCase().includes(text);
      card.el.hidden = !card.shown;
      card.dot.classList.toggle("off", !card.shown);
      shown += card.shown;
    }
    let missing = 0;
    for (const item of lost) {
      item.hidden = !["all", "unreadable"].includes(status) || !item.dataset.path.toLowerCase().includes(text);
      missing += !item.hidden;
    }
    if ($("unreadable")) $("unreadable").hidden = missing === 0;
    $("none").hidden = shown > 0 || missing > 0;
    $("shown").textContent = `${shown} shown`;
  }

  $("filter").addEventListener("input", update);
  $("status").addEventListener("change", update);
  $("sort").addEventListener("change", sort);
  $("reverse").addEventListener("click", (e) => {
    const reversed = e.currentTarget.getAttribute("aria-pressed") !== "true";
    e.currentTarget.setAttribute("aria-pressed", String(reversed));
    e.currentTarget.textContent = reversed ? "↓" : "↑";
    sort();
  });

  // The numbers as a file

  $("save").addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([$("scores").textContent], { type: "application/json" }));
    const link = Object.assign(document.createElement("a"), { href: address, download: "scores.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });

  sort();
  const first = document.querySelector(".chip");
  if (first) setThreshold(Number(first.dataset.threshold));
  else {
    for (const option of $("status").options) option.disabled = ["pass", "fail"].includes(option.value);
    $("slider").setAttribute("aria-valuetext", "no threshold yet");
    update();
  }
})();
