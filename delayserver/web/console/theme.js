// The chosen colours, before the page is drawn. A classic script, so that it runs before the first paint.
(() => {
  const known = ["auto", "light", "dark"];
  let kept = "auto";
  try {
    kept = localStorage.getItem("theme") ?? "auto";
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  document.documentElement.dataset.theme = known.includes(kept) ? kept : "auto";
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const names = { auto: "automatic", light: "light", dark: "dark" };
    const tell = () => {
      const name = names[document.documentElement.dataset.theme];
      button.setAttribute("aria-label", `Colours: ${name}. Change them`);
      button.title = `Colours: ${name} (key: t)`;
    };
    button.addEventListener("click", () => {
      const next = known[(known.indexOf(document.documentElement.dataset.theme) + 1) % known.length];
      document.documentElement.dataset.theme = next;
      try {
        localStorage.setItem("theme", next);
      } catch {
        // As above.
      }
      tell();
    });
    tell();
  });
})();
