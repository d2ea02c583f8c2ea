document.querySelectorAll(".timeline").forEach((timeline) => {
  const view = timeline.querySelector(".view"), field = timeline.querySelector(".field");
  const axis = timeline.querySelector(".axis"), whole = parseFloat(field.dataset.whole);
  let zoom = 1;
  const label = () => {
    const rough = whole / 6 / zoom, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    axis.replaceChildren(...Array.from({ length: Math.floor(whole / step + 1e-9) + 1 }, (_, i) => {
      const tick = document.createElement("s");
      tick.style.left = `${(100 * i * step) / whole}%`;
      tick.textContent = (i * step).toFixed(digits);
      return tick;
    }));
  };
  const set = (factor, x) => {
    const left = axis.offsetLeft, at = (view.scrollLeft + x - left) / axis.clientWidth;
    zoom = factor ? Math.min(Math.max(zoom * factor, 1), 64) : 1;
    field.style.width = `${100 * zoom}%`;
    view.scrollLeft = at * axis.clientWidth + left - x;
    label();
  };
  timeline.querySelector(".zoom").hidden = false;
  timeline.querySelectorAll("button").forEach((button) =>
    button.addEventListener("click", () => set(parseFloat(button.dataset.zoom), view.clientWidth / 2)));
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    set(event.deltaY < 0 ? 1.5 : 1 / 1.5, event.clientX - view.getBoundingClientRect().left);
  }, { passive: false });
  view.addEventListener("dblclick", (event) => set(4, event.clientX - view.getBoundingClientRect().left));
});
