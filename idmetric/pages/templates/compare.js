"use strict";
// an image next to its reference, with heatmaps and matched patches
(() => {
  const $ = (id) => document.getElementById(id);
  const { cards, verdict } = report;

  const matches = JSON.parse($("matches").textContent);
  const FULL = 65535, NOBODY = 65535;  // a cosine or strength of 1; the partner of a patch without one
  const LEAST = 0.5;  // of the page's scale: weaker matches get no line
  const HUES = [0, 140, 275, 200, 320, 20];  // none is the yellow of close matches
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const palette = bytes(matches.palette);
  const dialog = $("dialog"), lines = dialog.querySelector(".lines"), SVG = "http://www.w3.org/2000/svg";
  const places = { reference: $("at-reference"), image: $("at-image") };
  const other = { reference: "image", image: "reference" };
  let open = null, sides = null, chosen = null;  // a card; its patches; {side, patch} under the pointer

  function whole(text) {  // numbers of two bytes
    const raw = bytes(text);
    return Uint16Array.from({ length: raw.length / 2 }, (_, i) => raw[2 * i] | (raw[2 * i + 1] << 8));
  }

  function unpack(side) {
    return { rows: side.grid[0], columns: side.grid[1], share: side.share, partner: whole(side.partner),
      cosine: whole(side.cosine), strength: whole(side.strength) };
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
    $("controls").hidden = $("caveat").hidden = !sides;
    about(card);
    if (!dialog.open) {  // bare pictures; the choice is kept from image to image until the dialog is closed
      $("heat").checked = $("pairs").checked = false;
      dialog.showModal();
    }
    dialog.scrollTop = 0;
    draw();
  }

  function about(card) {
    const facts = [["Distance", card.distance.toFixed(4)], ["Rank", `${card.rank} of ${cards.length}`]];
    if (verdict(card)) facts.push(["Threshold", verdict(card)]);
    if (!Number.isNaN(card.probability)) facts.push(["P(same)", card.probability.toFixed(4)]);
    if (card.closer) facts.push(["Closer than this", card.closer]);
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
    const at = (strength / FULL - matches.low) / Math.max(1e-6, matches.high - matches.low);
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
      pixels.data.set([palette[at], palette[at + 1], palette[at + 2], partner[p] === NOBODY ? 0 : 255], 4 * p);
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

  function popular(side) {  // hubs: patches that many patches of the other picture match, whatever they show
    const count = new Uint16Array(sides[side].partner.length), { partner } = sides[other[side]];
    for (const p of partner) if (p !== NOBODY) count[p]++;
    const most = Math.max(4, partner.length / 16);
    return (p) => count[p] > most;
  }

  function best(count) {  // strong pairs that are each other's best and no hubs; of neighbors the strongest
    const { reference, image } = sides, found = [];
    const hub = { reference: popular("reference"), image: popular("image") };
    const least = Math.max(1, FULL * (matches.low + LEAST * (matches.high - matches.low)));
    const pairs = [...image.partner.keys()].map((p) => ({ image: p, reference: image.partner[p] })).filter((pair) =>
      pair.reference !== NOBODY && reference.partner[pair.reference] === pair.image && image.strength[pair.image] >= least
      && !hub.image(pair.image) && !hub.reference(pair.reference));
    pairs.sort((a, b) => image.strength[b.image] - image.strength[a.image] || a.image - b.image);
    const near = (side, p, q) => {
      const { rows, columns } = sides[side], apart = Math.max(1, Math.round(Math.min(rows, columns) / 9));
      return Math.abs(Math.floor(p / columns) - Math.floor(q / columns)) <= apart && Math.abs(p % columns - q % columns) <= apart;
    };
    for (const pair of pairs) {
      if (!found.some((q) => near("image", pair.image, q.image) || near("reference", pair.reference, q.reference))) found.push(pair);
      if (found.length === count) break;
    }
    return found;
  }

  function element(name, values) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  }

  function join(imagePatch, referencePatch, color) {
    const a = cell("reference", referencePatch), b = cell("image", imagePatch);
    const ends = { x1: a.x + a.width / 2, y1: a.y + a.height / 2, x2: b.x + b.width / 2, y2: b.y + b.height / 2 };
    for (const box of [a, b]) lines.append(element("rect", { ...box, class: "halo" }), element("rect", { ...box, stroke: color }));
    lines.append(element("line", { ...ends, class: "halo" }), element("line", { ...ends, stroke: color }));
  }

  function draw() {
    if (!open || !dialog.open) return;
    $("opacity").disabled = !$("heat").checked;
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
      if (partner[patch] === NOBODY) {
        readout.textContent = `${name}, ${place(patch, columns)}: outside the subject's mask`;
        return;
      }
      if (side === "image") join(patch, partner[patch], "#ff2d78"); else join(partner[patch], patch, "#ff2d78");
      readout.textContent = `${name}, ${place(patch, columns)}, matches the ${other[side]}'s ${place(partner[patch], its)}: cosine ${(cosine[patch] / FULL).toFixed(4)}, strength ${(sides[side].strength[patch] / FULL).toFixed(4)}`;
      return;
    }
    const pairs = $("pairs").checked ? best(HUES.length) : null;
    const says = [];
    if ($("heat").checked) says.push("Bright: a strong match in the other picture.");
    if (pairs && !pairs.length) says.push("No match is strong enough for a line.");
    readout.textContent = [...says, "Point at a patch, tap it, or use Tab and the arrow keys."].join(" ");
    (pairs || []).forEach((pair, i) => join(pair.image, pair.reference, `hsl(${HUES[i]} 90% 45%)`));
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
  $("legend-low").textContent = "match " + matches.low.toFixed(4);
  $("legend-high").textContent = matches.high.toFixed(4);
})();
