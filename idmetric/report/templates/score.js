"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const list = $("cards"), strip = $("strip");
  const low = Number(strip.dataset.low), high = Number(strip.dataset.high);
  const dots = [...strip.querySelectorAll(".dots i")];
  const number = (text) => (text === undefined ? NaN : Number(text));
  const cards = [...list.children].map((el, k) => ({
    el, dot: dots[k], k, button: el.querySelector(".open"), state: el.querySelector(".state"),
    rank: Number(el.dataset.rank), name: el.dataset.name, path: el.dataset.path,
    distance: number(el.dataset.distance), probability: number(el.dataset.probability),
    percentile: number(el.dataset.percentile), copy: el.dataset.copy === "1", itself: "itself" in el.dataset,
    reference: Number(el.dataset.reference), pass: false, shown: true,
  }));
  const lost = [...document.querySelectorAll(".lost li")];

  for (const card of cards) {  // the picture is in the page once, among the references
    const inset = card.el.querySelector(".inset");
    if (inset) { inset.src = $("r" + card.reference).src; inset.hidden = false; }
  }

  // Threshold

  const cut = (value) => 100 * Math.min(1, Math.max(0, (value - low) / (high - low)));
  let limit = null;  // none yet: nothing passes or fails

  function setThreshold(value, from) {
    if (!Number.isFinite(value)) return;
    limit = value;
    // too few references, or a calibration without photos: images are split, but not judged
    const neutral = [...document.querySelectorAll(".chip[data-neutral]")].some((chip) => Number(chip.dataset.threshold) === value);
    const [near, far, count] = neutral ? ["nearer", "farther", "nearer"] : ["pass", "fail", "pass"];
    document.documentElement.classList.toggle("neutral", neutral);
    let passes = 0;
    for (const card of cards) {
      card.pass = card.distance <= value;
      passes += card.pass;
      card.el.classList.toggle("pass", card.pass);
      card.dot.classList.toggle("pass", card.pass);
      card.state.textContent = card.pass ? near : far;
    }
    document.documentElement.classList.remove("undecided");
    for (const option of $("status").options) option.disabled = false;
    document.documentElement.style.setProperty("--cut", cut(value) + "%");
    $("passes").textContent = `${passes} of ${cards.length}`;
    $("passes-title").textContent = neutral ? "Nearer" : "Pass";
    for (const option of $("status").options) {
      if (option.value === "pass") option.text = neutral ? "Nearer" : "Pass";
      if (option.value === "fail") option.text = neutral ? "Farther" : "Fail";
    }
    $("count").textContent = `${passes} of ${cards.length} ${count} at ${value.toFixed(4)}`;
    if (from !== "slider") $("slider").value = String(value);
    if (from !== "number") $("threshold").value = String(Number(value.toFixed(6)));  // `limit` stays exact
    $("slider").setAttribute("aria-valuetext", `${value.toFixed(4)}: ${passes} of ${cards.length} ${count}`);
    for (const chip of document.querySelectorAll(".chip")) {
      chip.setAttribute("aria-pressed", String(Number(chip.dataset.threshold) === value));
    }
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
    percentile: (a, b, way) => nothingLast(a.percentile, b.percentile, way),
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
      const right = { all: true, pass: card.pass, fail: !card.pass, copy: card.copy, unreadable: false }[status];
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

  // Side by side

  const matches = JSON.parse($("matches").textContent);
  const HUES = [0, 140, 275, 200, 320, 20];  // none is the yellow of close matches
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const palette = bytes(matches.palette);
  const dialog = $("dialog"), lines = dialog.querySelector(".lines"), SVG = "http://www.w3.org/2000/svg";
  const places = { reference: $("at-reference"), image: $("at-image") };
  const other = { reference: "image", image: "reference" };
  let open = null, sides = null, chosen = null;  // a card; its patches; {side, patch} under the pointer

  function unpack(side) {
    const raw = bytes(side.partner);
    const partner = Uint16Array.from({ length: raw.length / 2 }, (_, i) => raw[2 * i] | (raw[2 * i + 1] << 8));
    return { rows: side.grid[0], columns: side.grid[1], share: side.share, partner,
      cosine: bytes(side.cosine), strength: bytes(side.strength) };
  }

  function show(card) {
    open = card; chosen = null;
    const found = matches.items[card.k];
    sides = found ? { reference: unpack(found.reference), image: unpack(found.image) } : null;
    const reference = $("r" + card.reference);
    const pictures = { reference, image: card.el.querySelector(".frame img") };
    const captions = { reference: reference.parentElement.querySelector(".name").title, image: card.path };
    for (const side of ["reference", "image"]) {
      const img = places[side].querySelector("img");
      img.alt = side === "reference" ? "Reference " + captions[side] : "Image " + card.name;
      img.src = pictures[side].src;
      places[side].parentElement.querySelector("bdi").textContent = captions[side];
      places[side].tabIndex = sides ? 0 : -1;
      img.decode().then(draw, draw);
    }
    $("dialog-title").textContent = `${card.distance.toFixed(4)} · ${card.name}`;  // of a long name the end is cut off
    $("controls").hidden = !sides;
    about(card);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    draw();
  }

  function about(card) {
    const facts = [["Distance", card.distance.toFixed(4)], ["Rank", `${card.rank} of ${cards.length}`]];
    if (limit !== null) facts.push(["Threshold", `${card.state.textContent} at ${limit.toFixed(4)}`]);
    if (!Number.isNaN(card.probability)) facts.push(["P(same)", card.probability.toFixed(4)]);
    if (!Number.isNaN(card.percentile)) facts.push(["Real nearer", `${card.percentile.toFixed(0)} %`]);
    if (card.itself) facts.push(["Note", "the reference itself, among the images"]);
    else if (card.copy) facts.push(["Warning", "repeats a reference's pixels: a copy, not a new picture"]);
    $("about").replaceChildren(...facts.flatMap(([name, value]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name; dd.textContent = value;
      return [dt, dd];
    }));
  }

  function step(by) {
    const shown = cards.filter((card) => card.shown);
    const at = shown.indexOf(open);
    if (shown.length) show(shown[(at + by + shown.length) % shown.length]);
  }

  // Heatmaps

  function level(strength) {
    const at = (strength / 255 - matches.low) / Math.max(1e-6, matches.high - matches.low);
    return Math.round(255 * Math.min(1, Math.max(0, at)));
  }

  function fit(side) {  // as large as there is room, to twice its own size
    const img = places[side].querySelector("img"), room = places[side].parentElement.clientWidth;
    if (!img.naturalHeight) return;
    const aspect = img.naturalWidth / img.naturalHeight;
    places[side].style.width = Math.max(24, Math.min(room, 0.56 * window.innerHeight * aspect, 2 * img.naturalWidth)) + "px";
  }

  function heat(side) {
    const canvas = places[side].querySelector("canvas"), box = places[side].getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(box.width * scale)); canvas.height = Math.max(1, Math.round(box.height * scale));
    if (!sides || !$("heat").checked) return;
    const { rows, columns, share, partner, strength } = sides[side];
    const small = document.createElement("canvas");
    small.width = columns; small.height = rows;
    const pixels = new ImageData(columns, rows);
    for (let p = 0; p < rows * columns; p++) {
      const at = 3 * level(strength[p]);
      pixels.data.set([palette[at], palette[at + 1], palette[at + 2], partner[p] === 65535 ? 0 : 255], 4 * p);
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    const context = canvas.getContext("2d");
    context.globalAlpha = Number($("opacity").value);
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, canvas.width * share[1], canvas.height * share[0]);
  }

  // Matched patches

  function cell(side, patch) {  // its rectangle in the stage
    const { rows, columns, share } = sides[side];
    const box = places[side].getBoundingClientRect(), stage = $("stage").getBoundingClientRect();
    const width = box.width * share[1] / columns, height = box.height * share[0] / rows;
    return { x: box.left - stage.left + (patch % columns) * width,
      y: box.top - stage.top + Math.floor(patch / columns) * height, width, height };
  }

  function best(count) {  // pairs that are each other's best, strongest first, not beside each other
    const { reference, image } = sides, found = [];
    const pairs = [...image.partner.keys()].filter((p) => image.strength[p] > 0 && reference.partner[image.partner[p]] === p);
    pairs.sort((a, b) => image.strength[b] - image.strength[a] || a - b);
    const apart = Math.max(1, Math.round(Math.min(image.rows, image.columns) / 9));
    for (const p of pairs) {
      const near = (q) => Math.abs(Math.floor(p / image.columns) - Math.floor(q / image.columns)) <= apart
        && Math.abs(p % image.columns - q % image.columns) <= apart;
      if (!found.some(near)) found.push(p);
      if (found.length === count) break;
    }
    return found;
  }

  function element(name, values) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  }

  function join(imagePatch, referencePatch, colour) {
    const a = cell("reference", referencePatch), b = cell("image", imagePatch);
    const ends = { x1: a.x + a.width / 2, y1: a.y + a.height / 2, x2: b.x + b.width / 2, y2: b.y + b.height / 2 };
    for (const box of [a, b]) lines.append(element("rect", { ...box, class: "halo" }), element("rect", { ...box, stroke: colour }));
    lines.append(element("line", { ...ends, class: "halo" }), element("line", { ...ends, stroke: colour }));
  }

  function draw() {
    if (!open || !dialog.open) return;
    for (const side of ["reference", "image"]) { fit(side); heat(side); }
    lines.replaceChildren();
    const readout = $("readout");
    if (!sides) {
      readout.textContent = matches.note;
      return;
    }
    if (chosen) {
      const { side, patch } = chosen, { partner, cosine, columns } = sides[side], its = sides[other[side]].columns;
      const name = side === "image" ? "Image" : "Reference";
      const place = (p, wide) => `row ${Math.floor(p / wide) + 1}, column ${p % wide + 1}`;
      if (partner[patch] === 65535) {
        readout.textContent = `${name}, ${place(patch, columns)}: outside the subject's mask`;
        return;
      }
      if (side === "image") join(patch, partner[patch], "#ff2d78"); else join(partner[patch], patch, "#ff2d78");
      readout.textContent = `${name}, ${place(patch, columns)}, matches the ${other[side]}'s ${place(partner[patch], its)}: cosine ${(cosine[patch] / 255).toFixed(2)}, strength ${(sides[side].strength[patch] / 255).toFixed(2)}`;
      return;
    }
    readout.textContent = "Bright: patches with a strong match in the other picture. Point at one, tap it, or use Tab and the arrow keys.";
    if ($("pairs").checked) {
      best(HUES.length).forEach((p, i) => join(p, sides.image.partner[p], `hsl(${HUES[i]} 90% 45%)`));
    }
  }

  function point(side, event) {
    if (!sides) return;
    const { rows, columns, share } = sides[side], box = places[side].getBoundingClientRect();
    const x = (event.clientX - box.left) / (box.width * share[1]), y = (event.clientY - box.top) / (box.height * share[0]);
    const column = Math.min(columns - 1, Math.max(0, Math.floor(x * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor(y * rows)));
    chosen = { side, patch: row * columns + column };
    draw();
  }

  const forget = () => { if (chosen) { chosen = null; draw(); } };
  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  for (const [side, place] of Object.entries(places)) {
    place.addEventListener("pointermove", (e) => point(side, e));
    place.addEventListener("pointerdown", (e) => point(side, e));
    place.addEventListener("pointerleave", (e) => e.pointerType === "mouse" && forget());
    place.addEventListener("blur", forget);
    place.addEventListener("keydown", (e) => {
      if (!(e.key in MOVES) || !sides) return;
      e.preventDefault(); e.stopPropagation();
      const { rows, columns } = sides[side], [down, right] = MOVES[e.key];
      const at = chosen && chosen.side === side ? chosen.patch : null;
      const row = at === null ? Math.floor(rows / 2) : Math.floor(at / columns) + down;
      const column = at === null ? Math.floor(columns / 2) : at % columns + right;
      chosen = { side, patch: Math.min(rows - 1, Math.max(0, row)) * columns + Math.min(columns - 1, Math.max(0, column)) };
      draw();
    });
  }

  for (const card of cards) {
    card.button.addEventListener("click", () => show(card));
    card.dot.addEventListener("click", () => show(card));
  }
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  $("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (e) => {
    if (e.target !== dialog) return;  // beside the contents: padding or backdrop
    const box = dialog.getBoundingClientRect();
    if (e.clientX < box.left || e.clientX > box.right || e.clientY < box.top || e.clientY > box.bottom) dialog.close();
  });
  dialog.addEventListener("close", () => { if (open && open.shown) open.button.focus(); open = null; });
  dialog.addEventListener("keydown", (e) => {
    if (e.target.matches("input[type=range]")) return;  // it has its own use of the keys
    if (e.key === "ArrowLeft") step(-1);
    if (e.key === "ArrowRight") step(1);
  });
  for (const id of ["heat", "pairs"]) $(id).addEventListener("change", draw);
  $("opacity").addEventListener("input", draw);
  window.addEventListener("resize", draw);

  const legend = $("legend").getContext("2d");
  for (let x = 0; x < 96; x++) {
    const at = 3 * Math.round(x / 95 * 255);
    legend.fillStyle = `rgb(${palette[at]} ${palette[at + 1]} ${palette[at + 2]})`;
    legend.fillRect(x, 0, 1, 10);
  }
  $("legend-low").textContent = "match " + matches.low.toFixed(2);
  $("legend-high").textContent = matches.high.toFixed(2);

  sort();
  if ($("threshold").value !== "") setThreshold(Number($("threshold").value));
  else {
    for (const option of $("status").options) option.disabled = ["pass", "fail"].includes(option.value);
    $("slider").setAttribute("aria-valuetext", "no threshold yet");
    update();
  }
})();
