"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const KEY = "idmetric-theme";
  let chosen = null;
  try { chosen = localStorage.getItem(KEY); } catch { /* not kept in files of some browsers */ }
  const show = () => {
    if (chosen) root.dataset.theme = chosen;
    const dark = chosen ? chosen === "dark" : system.matches;
    button.setAttribute("aria-pressed", String(dark));
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Switch to light colors" : "Switch to dark colors");
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = (chosen ? chosen === "dark" : system.matches) ? "light" : "dark";
    try { localStorage.setItem(KEY, chosen); } catch { /* as above */ }
    show();
  });
  system.addEventListener("change", show);
  show();
})();
