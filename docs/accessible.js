// What the theme leaves out for readers without a mouse or a screen.
(() => {
  const mend = () => {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
  };
  mend();
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true }); // tables are wrapped later
})();
