// The page itself: the theme, the views, and where the numbers come from.

function themeSwitch() {
  const stored = (() => { try { return localStorage.getItem("residscope-theme"); } catch { return null; } })();
  const set = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("residscope-theme", theme); } catch { /* a page without storage keeps its theme for this visit */ }
    document.dispatchEvent(new Event("themechange"));
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
  const chosen = ["light", "dark"].includes(stored) ? stored : "auto";
  if (chosen !== "auto") document.documentElement.dataset.theme = chosen;
  return segmented("Theme", [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]], chosen, set).element;
}

async function start() {
  document.getElementById("theme").append(themeSwitch());
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
