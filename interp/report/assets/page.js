// The page itself: the theme, the way around, the views, and paper.

const root = document.documentElement;
const repaint = () => document.querySelectorAll("[data-themed]").forEach((one) => one.dispatchEvent(new Event("themechange")));

function wear(theme) {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  repaint();
}

function themeSwitch() {
  const stored = (() => { try { return localStorage.getItem("residscope-theme"); } catch { return null; } })();
  const set = (theme) => {
    try { localStorage.setItem("residscope-theme", theme); } catch { /* a page without storage keeps its theme for this visit */ }
    wear(theme);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  const chosen = ["light", "dark"].includes(stored) ? stored : "auto";
  if (chosen !== "auto") root.dataset.theme = chosen;
  return segmented("Theme", [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]], chosen, set).element;
}

/** Paper is white: print in light colours, whatever the screen wears. Canvases are painted anew before and after. */
function printLight() {
  let before = null;
  const lighten = () => {
    if (before !== null) return;
    before = root.dataset.theme ?? "auto";
    wear("light");
  };
  const restore = () => {
    if (before !== null) wear(before);
    before = null;
  };
  window.addEventListener("beforeprint", lighten);
  window.addEventListener("afterprint", restore);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? lighten() : restore()));
}

/** Links to the views. In a frame without an address of its own, "#view-1" would load the parent's page into it. */
function wayAround() {
  document.querySelector("nav")?.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    const hash = link.getAttribute("href"), section = document.querySelector(hash);
    section.scrollIntoView();
    section.querySelector("h2").focus({ preventScroll: true }); // so that the next Tab is in the view that was asked for
    if (location.protocol !== "about:") history.pushState(null, "", hash);
  });
}

async function start() {
  document.getElementById("theme").append(themeSwitch());
  printLight();
  wayAround();
  for (const section of document.querySelectorAll("section[data-view]")) {
    const mount = section.querySelector(".mount");
    try {
      const source = await views[section.dataset.view](mount, payload(section.dataset.source));
      mount.append(copyButtons(source));
      section.dataset.ready = "";
    } catch (error) {
      mount.append(h("p", { class: "warning" }, `This view could not be drawn: ${error.message}`));
      console.error(error);
    }
  }
  document.body.dataset.ready = "";
}

start();
