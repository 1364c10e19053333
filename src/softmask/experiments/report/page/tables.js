// Tables: sort by a click on a header, copy in a form to paste, and the theme.
"use strict";

function cellKey(cell) {
  if (!cell) return null;
  if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
  const text = cell.textContent.trim();
  return text === "–" || text === "" ? null : text;
}

function compareKeys(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortTable(table, column, header) {
  const rising = header.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: cellKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null); // what is missing comes last
    return rising ? compareKeys(a.key, b.key) : compareKeys(b.key, a.key);
  });
  table.tBodies[0].append(...rows.map((entry) => entry.row));
}

function makeSortable(table) {
  if (!table.tHead || table.tBodies[0].rows.length < 2) return;
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.title = "Sort by this column";
    button.addEventListener("click", () => sortTable(table, column, header));
    header.append(button);
  });
}

function makeCopyButton(button) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    const said = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // a file opened from disk may have no clipboard
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = said), 1200);
  });
}

const theme = {
  button: document.getElementById("theme"),
  wanted: window.matchMedia("(prefers-color-scheme: dark)"),
  set(name) {
    document.documentElement.dataset.theme = name;
    this.button.textContent = name === "dark" ? "Light" : "Dark";
    this.button.setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} mode`);
  },
  chosen() {
    try { return localStorage.getItem("softmask-theme"); } catch { return null; }
  },
  start() {
    this.set(this.chosen() || (this.wanted.matches ? "dark" : "light"));
    this.wanted.addEventListener("change", (event) => {
      if (!this.chosen()) this.set(event.matches ? "dark" : "light");
    });
    this.button.addEventListener("click", () => {
      const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("softmask-theme", name); } catch { /* then only for now */ }
      this.set(name);
    });
  },
};

function markWhereWeAre() {
  const links = new Map([...document.querySelectorAll("header.bar nav a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.classList.remove("here");
      links.get(entry.target.id)?.classList.add("here");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const id of links.keys()) {
    const section = document.getElementById(id);
    if (section) seen.observe(section);
  }
}

theme.start();
document.querySelectorAll(".scroll table").forEach(makeSortable);
document.querySelectorAll("button[data-copy]").forEach(makeCopyButton);
markWhereWeAre();
