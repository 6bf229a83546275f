"use strict";
(() => {
  const { study, page, task, questions, pictures } = JSON.parse(document.getElementById("record").textContent);
  const at = (id) => document.getElementById(id);
  const byId = new Map(questions.map((question) => [question.id, question]));
  const buttons = [...document.querySelectorAll("[data-choice]")];
  const choices = buttons.map((button) => button.dataset.choice);
  const images = [...document.querySelectorAll("#shown img")];

  // What this browser keeps: who answers, and their answers to this page

  let kept = true;
  const load = (key) => { try { return localStorage.getItem(key); } catch { kept = false; return null; } };
  const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { kept = false; } };
  const random = (count) => crypto.getRandomValues(new Uint32Array(count));
  const hex = () => [...random(2)].map((n) => n.toString(16).padStart(8, "0")).join("");

  const whoKey = `idmetric-participant-${study}`;
  let participant, state;
  const stateKey = () => `idmetric-study-${study}-${page}-${participant}`;
  const save = () => keep(stateKey(), JSON.stringify(state));

  /* A new participant sees the questions in a random order, and each with its images on random sides. */
  function fresh() {
    const order = [...byId.keys()], numbers = random(order.length), sides = random(order.length);
    for (let k = order.length - 1; k > 0; k--) {
      const other = numbers[k] % (k + 1);
      [order[k], order[other]] = [order[other], order[k]];
    }
    return { order, swapped: order.filter((_, k) => sides[k] % 2), answers: {}, at: 0, started: false, revision: 0 };
  }
  function stored() {
    try {
      const found = JSON.parse(load(stateKey()));
      const known = found.order.length === byId.size && new Set(found.order).size === byId.size;
      const right = found.order.every((id) => byId.has(id)) && Array.isArray(found.swapped)
        && Object.entries(found.answers).every(([id, choice]) => byId.has(id) && choices.includes(choice))
        && Number.isInteger(found.at) && found.at >= 0 && found.at <= byId.size
        && Number.isInteger(found.revision) && found.revision >= 0;
      return known && right ? found : null;
    } catch { return null; }
  }
  function enter() {
    participant = load(whoKey);
    if (!/^[0-9a-f]{16}$/.test(participant || "")) { participant = hex(); keep(whoKey, participant); }
    state = stored() || fresh();
    save();
    at("lost").hidden = kept;
  }

  // The questions

  const total = questions.length;
  const answered = () => Object.keys(state.answers).length;
  function show(focus = true) {
    const where = !state.started ? "intro" : state.at >= total ? "done" : "ask";
    for (const id of ["intro", "ask", "done"]) at(id).hidden = id !== where;
    if (where === "ask") fill();
    if (focus) at({ intro: "intro-title", ask: "place", done: "done-title" }[where]).focus({ preventScroll: true });
    if (focus) scrollTo(0, 0);
  }
  function fill() {
    const id = state.order[state.at], shown = [...byId.get(id).images];
    const asked = task === "pairs" ? "do both show the same individual?" : "which image shows the subject of the reference?";
    at("place").textContent = `Question ${state.at + 1} of ${total}: ${asked}`;
    at("progress").value = answered();
    // sides are swapped of a pair's two images, and of a triplet's two choices
    if (state.swapped.includes(id)) shown.push(...shown.splice(-2).reverse());
    images.forEach((image, k) => { image.src = pictures[shown[k]]; });
    for (const button of buttons) button.setAttribute("aria-pressed", String(side(id, button.dataset.choice) === state.answers[id]));
    at("back").disabled = state.at === 0;
    at("next").disabled = !(id in state.answers);
  }
  /* The choice that a button means: of swapped sides, left is the question's right image. */
  function side(id, choice) {
    const turned = task === "triplets" && state.swapped.includes(id);
    return turned ? choices[1 - choices.indexOf(choice)] : choice;
  }
  function answer(choice) {
    const id = state.order[state.at];
    state.answers[id] = side(id, choice);
    go(1);
  }
  function go(step) {
    state.at = Math.max(0, Math.min(total, state.at + step));
    save();
    show();
  }

  at("start").addEventListener("click", () => { state.started = true; save(); show(); });
  buttons.forEach((button) => button.addEventListener("click", () => answer(button.dataset.choice)));
  at("back").addEventListener("click", () => go(-1));
  at("next").addEventListener("click", () => go(1));
  at("review").addEventListener("click", () => go(-1));
  document.addEventListener("keydown", (event) => {
    if (at("ask").hidden || event.repeat || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const k = ["ArrowLeft", "ArrowRight"].indexOf(event.key);
    if (k >= 0) { event.preventDefault(); answer(choices[k]); }
  });

  // The file

  at("download").addEventListener("click", () => {
    state.revision += 1;
    save();
    const { answers, revision } = state;
    const text = JSON.stringify({ study, page, participant, revision, answers }, null, 1);
    const address = URL.createObjectURL(new Blob([text + "\n"], { type: "application/json" }));
    const name = `answers-${study.slice(0, 6)}-${page}-${participant}-${revision}.json`;
    Object.assign(document.createElement("a"), { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
    at("saved").textContent = `Saved as ${name} in your downloads.`;
  });
  at("another").addEventListener("click", () => {
    keep(whoKey, hex());
    at("saved").textContent = "";
    enter();
    show();
  });

  enter();
  show(false);
})();
