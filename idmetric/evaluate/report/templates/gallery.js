"use strict";
(() => {
  const { images, pictures, base, ...groups } = JSON.parse(document.getElementById("record").textContent);
  const GROUPS = 50, SINGLE = 100;  // of a page
  const at = (id) => document.getElementById(id);
  const make = (name, values = {}, ...children) => {
    const made = Object.assign(document.createElement(name), values);
    made.append(...children);
    return made;
  };
  const fact = (...texts) => make("span", { className: "facts" }, ...texts.map((text) => make("span", { textContent: text })));

  function face(n) {
    const image = images[n], button = make("button", { type: "button", className: "see", title: image.path });
    button.dataset.image = n;
    button.setAttribute("aria-label", `Nearest images of ${image.name}`);
    button.append(make("span", { className: "frame" }, image.picture >= 0
      ? make("img", { alt: "", src: pictures[image.picture] })
      : make("span", { className: "hole", textContent: `no picture: ${image.fault}` })));
    button.addEventListener("click", () => open(n));
    return button;
  }
  function name(text) {  // its end, with lines that break after folders and words
    const end = text.length > 46 ? `…${text.slice(-45)}` : text;
    return make("bdi", { className: "name", title: text }, ...end.split(/(?<=[/_])/).flatMap((part) => [part, make("wbr")]));
  }
  const size = (bytes) => bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(2)} MB`;

  // The nearest images

  function open(k) {
    at("nearest-title").textContent = images[k].path;
    const near = images[k].near.match(/\d+ [\d.]+/g) || [];
    at("found").replaceChildren(...[`${k} this image`, ...near].map((pair) => {
      const [n, ...text] = pair.split(" ");
      return make("li", {}, face(Number(n)), name(images[n].name), fact(text.join(" ")));
    }));
    if (!at("nearest").open) at("nearest").showModal();
    at("nearest").scrollTop = 0;
  }
  at("close").addEventListener("click", () => at("nearest").close());

  // Duplicates

  const gone = new Set(groups.copies.flat().filter((row) => !row.keep && !row.fixed).map((row) => row.image));
  function copies(rows, k) {
    const count = make("span"), none = make("b", { className: "none", textContent: " keeps nothing" });
    const warn = () => {
      count.textContent = `Group ${k + 1}: ${rows.length} images, ${rows.filter((row) => gone.has(row.image)).length} to remove`;
      none.hidden = !keepsNothing(rows);
    };
    const list = rows.map((row) => {
      const image = images[row.image], tick = make("input", { type: "checkbox", autocomplete: "off" });
      tick.dataset.remove = row.image;
      tick.checked = gone.has(row.image);
      tick.disabled = Boolean(row.fixed);
      tick.addEventListener("change", () => {
        if (tick.checked) gone.add(row.image); else gone.delete(row.image);
        warn();
        show();
      });
      const numbers = `${row.reason}, distance ${row.distance.toFixed(4)}, agreement ${row.agreement.toFixed(4)}`;
      const verdict = { kept: "suggested to keep", "same bytes": "same bytes" }[row.reason] || numbers;
      return make("li", {}, face(row.image), make("div", {}, name(image.path), fact(
        `${image.width} × ${image.height} px, ${size(image.bytes)}`, verdict),
      make("label", {}, tick, ` remove${row.fixed ? ` (${row.fixed})` : ""}`)));
    });
    warn();
    return make("fieldset", { className: "group" },
      make("legend", {}, count, none), make("ul", { className: "shelf" }, ...list));
  }
  const keepsNothing = (rows) => rows.every((row) => gone.has(row.image));

  // Identities, and images in no group

  const cluster = (rows, k) => make("fieldset", { className: "group" },
    make("legend", { textContent: `Cluster ${k + 1}: ${rows.length} images` }),
    make("ul", { className: "shelf tight" }, ...rows.map((row) => make("li", { className: row.outlier ? "outlier" : "" },
      face(row.image), make("div", {}, name(images[row.image].path),
        fact(row.center ? "center" : `distance ${row.distance.toFixed(4)}`, ...(row.outlier ? ["outlier"] : [])))))));
  const single = (n) => make("li", {}, face(n), name(images[n].path));

  function paged(id, size, list, draw) {
    const all = groups[id], last = Math.max(1, Math.ceil(all.length / size));
    if (!all.length) return;
    let page = 0;
    const pagers = [0, 1].map((bottom) => {
      const [back, text, next] = [make("button", { type: "button", className: "ghost back", textContent: "Previous" }),
        make("span"), make("button", { type: "button", className: "ghost next", textContent: "Next" })];
      back.addEventListener("click", () => turn(page - 1, bottom));
      next.addEventListener("click", () => turn(page + 1, bottom));
      const own = make("div", { className: "pager", hidden: last === 1 }, back, text, next);
      return { own, back, text, next };
    });
    function turn(to, up) {
      page = to;
      list.replaceChildren(...all.slice(page * size, (page + 1) * size).map((one, k) => draw(one, page * size + k)));
      for (const { back, text, next } of pagers) {
        back.disabled = !page;
        next.disabled = page === last - 1;
        text.textContent = `Page ${page + 1} of ${last}`;
      }
      if (up) at(id).scrollIntoView();
    }
    at(id).append(pagers[0].own, list, pagers[1].own);
    turn(0);
  }
  paged("copies", GROUPS, make("div", { className: "groups" }), copies);
  paged("clusters", GROUPS, make("div", { className: "groups" }), cluster);
  paged("single", SINGLE, make("ul", { className: "faces" }), single);
  const views = [...document.querySelectorAll("[data-view]")];
  for (const button of views)
    button.addEventListener("click", () => views.forEach((other) => {
      other.setAttribute("aria-pressed", String(other === button));
      at(other.dataset.view).hidden = other !== button;
    }));

  // Files to remove: each with the file that stays in its place

  if (!groups.copies.length) return;
  const support = (image) => image.manifest || image.path;
  const chosen = () => groups.copies.flatMap((rows) => {
    const stays = rows.find((row) => !gone.has(row.image));
    return rows.filter((row) => gone.has(row.image))
      .map((row) => ({ ...images[row.image], stays: stays && support(images[stays.image]) }));
  });
  const summary = (some) => {
    const bytes = some.reduce((sum, image) => sum + image.bytes, 0);
    return `${some.length} ${some.length === 1 ? "file" : "files"} to remove, ${(bytes / 1e6).toFixed(2)} MB saved`;
  };
  function show() {
    const some = chosen(), lost = groups.copies.findIndex(keepsNothing), notes = [];
    at("sum").textContent = summary(some);
    for (const id of ["list", "remove", "move"]) at(id).disabled = !some.length || lost >= 0;
    if (lost >= 0) notes.push(`Group ${lost + 1} keeps nothing: clear one of its boxes to save a list or script.`);
    const broken = some.filter((image) => /[\r\n]/.test(image.path)).length;
    if (broken) notes.push(`The list leaves out ${broken} names with line breaks; the scripts have them.`);
    at("caution").textContent = notes.join(" ");
  }
  show();

  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  function save(file, lines) {
    const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/plain" }));
    make("a", { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }
  function script(file, before, command, target) {
    const some = chosen();
    save(file, ["#!/bin/sh", `# ${summary(some)}`, "status=0", ...before,
      ...(base ? [`cd -- ${quoted(base)} || exit 1`] : []),
      'remove() {  # a file, if the file that stays in its place is there', '  if [ ! -f "$2" ]; then',
      '    printf "%s stays: %s is missing\\n" "$1" "$2" >&2; status=1', `  ${command}`, "}",
      ...some.map((image, k) => `remove ${quoted(image.path)} ${quoted(image.stays)}${target(image, k)}`), "exit $status"]);
  }
  at("list").addEventListener("click", () =>
    save("remove.txt", chosen().map((image) => image.path).filter((path) => !/[\r\n]/.test(path))));
  at("remove").addEventListener("click", () => script("remove.sh", [], 'else rm -- "$1" || status=1; fi', () => ""));
  at("move").addEventListener("click", () => script("move.sh", [
    `folder=${quoted(at("folder").value || "removed-duplicates")}`, 'mkdir -p -- "$folder" && folder=$(cd -- "$folder" > /dev/null && pwd) || exit 1',
  ], 'elif [ -e "$folder/$3" ]; then printf "%s exists\\n" "$folder/$3" >&2; status=1\n  else mv -- "$1" "$folder/$3" || status=1; fi',
  (image, k) => ` ${quoted(`${k + 1}-${image.path.split("/").pop()}`)}`));
})();
