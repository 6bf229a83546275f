"use strict";
(() => {
  const { images, pictures, unseen } = JSON.parse(document.getElementById("record").textContent);
  const at = (id) => document.getElementById(id);

  function fill(button) {
    const image = images[button.dataset.image], img = button.querySelector("img");
    if (img) img.src = pictures[image.picture];
    button.addEventListener("click", () => open(Number(button.dataset.image)));
  }
  document.querySelectorAll("button.see").forEach(fill);

  // The nearest images

  const make = (name, values = {}, ...children) => {
    const made = Object.assign(document.createElement(name), values);
    made.append(...children);
    return made;
  };
  function open(k) {
    at("nearest-title").textContent = images[k].name;
    at("found").replaceChildren(...[k, ...images[k].near].map((n, place) => {
      const image = images[n], button = make("button", { type: "button", className: "see", title: image.path });
      button.dataset.image = n;
      button.setAttribute("aria-label", `Nearest images of ${image.name}`);
      button.append(make("span", { className: "frame" }, image.picture >= 0 ? make("img", { alt: "" })
        : make("span", { className: "hole", textContent: `no picture: ${image.fault}` })));
      fill(button);
      return make("li", {}, button, make("bdi", { className: "name", textContent: image.name }),
        make("span", { className: "facts", textContent: place ? images[k].far[place - 1].toFixed(4) : "this image" }));
    }));
    if (!at("nearest").open) at("nearest").showModal();
    at("nearest").scrollTop = 0;
  }
  at("close").addEventListener("click", () => at("nearest").close());

  // Files to remove

  const ticks = [...document.querySelectorAll("[data-remove]")], others = at("unseen");
  if (!ticks.length && !others) return;
  const chosen = () => ticks.filter((tick) => tick.checked && !tick.disabled)
    .map((tick) => images[tick.dataset.remove]).concat(others && others.checked ? unseen : []);
  const summary = () => {
    const some = chosen(), bytes = some.reduce((sum, image) => sum + image.bytes, 0);
    return `${some.length} ${some.length === 1 ? "file" : "files"} to remove, ${(bytes / 1e6).toFixed(2)} MB saved`;
  };
  function show() {
    at("sum").textContent = summary();
    for (const id of ["list", "remove", "move"]) at(id).disabled = !chosen().length;
    const broken = chosen().filter((image) => /[\r\n]/.test(image.path)).length;
    at("caution").textContent = broken ? `The list leaves out ${broken} names with line breaks; the scripts have them.` : "";
    for (const group of document.querySelectorAll(".group"))
      group.querySelector(".none").hidden = [...group.querySelectorAll("[data-remove]")].some((tick) => !tick.checked);
  }
  [...ticks, ...(others ? [others] : [])].forEach((tick) => tick.addEventListener("change", show));
  show();

  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  function save(name, lines) {
    const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/plain" }));
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }
  const head = () => ["#!/bin/sh", `# ${summary()}`, "status=0"];
  at("list").addEventListener("click", () =>
    save("remove.txt", chosen().map((image) => image.path).filter((path) => !/[\r\n]/.test(path))));
  at("remove").addEventListener("click", () =>
    save("remove.sh", [...head(), ...chosen().map((image) => `rm -- ${quoted(image.path)} || status=1`), "exit $status"]));
  at("move").addEventListener("click", () => save("move.sh", [
    ...head(), `folder=${quoted(at("folder").value || "removed-duplicates")}`, 'mkdir -p -- "$folder" || exit 1',
    "move() {", '  if [ -e "$folder/$2" ]; then printf "%s exists\\n" "$folder/$2" >&2; status=1',
    '  else mv -- "$1" "$folder/$2" || status=1; fi', "}",
    ...chosen().map((image, k) => `move ${quoted(image.path)} ${quoted(`${k + 1}-${image.path.split("/").pop()}`)}`),
    "exit $status",
  ]));
})();
