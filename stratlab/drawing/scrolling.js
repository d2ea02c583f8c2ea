const reach = () => document.querySelectorAll(".scroll, .chart").forEach((box) => {
  if (box.scrollWidth > box.clientWidth) {
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", box.className === "chart" ? "chart, scrolls sideways" : "table, scrolls sideways");
  } else {
    ["tabindex", "role", "aria-label"].forEach((name) => box.removeAttribute(name));
  }
});
reach();
addEventListener("resize", reach);
document.querySelectorAll("details").forEach((box) => box.addEventListener("toggle", reach));
