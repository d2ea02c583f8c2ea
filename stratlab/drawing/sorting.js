document.querySelectorAll("table").forEach((table) => {
  const value = (row, place) => {
    const text = row.cells[place] ? row.cells[place].textContent.trim() : "";
    const number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  table.querySelectorAll("thead th").forEach((head, place) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(value(a, place), value(b, place)));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
});
