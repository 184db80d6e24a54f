// The report's page: draws its charts, sorts and copies its tables. Everything it shows is in the
// document; it asks no network for anything, and puts text into the page as text alone.
const root = document.documentElement;
const data = JSON.parse(document.getElementById("report-data").textContent);
const views = [];
let pinned = null;

root.classList.add("script");

// Themes: what the system says, until the reader says otherwise.
const themes = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
function setTheme(theme) {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  themeButton.textContent = `theme: ${theme}`;
  themeButton.dataset.now = theme;
}
themeButton.addEventListener("click", () => {
  setTheme(themes[(themes.indexOf(themeButton.dataset.now) + 1) % themes.length]);
});
setTheme("auto");

// The tooltip: a run's name, then titles and numbers.
const tip = document.getElementById("tip");
function showTip(event, value) {
  tip.replaceChildren();
  const name = document.createElement("b");
  name.textContent = value.name;
  const list = document.createElement("dl");
  for (const [title, number] of Object.entries(value)) {
    if (title === "name" || number === "" || number == null) continue;
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = title;
    dd.textContent = number;
    list.append(dt, dd);
  }
  tip.append(name, list);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 14;
  const top = event.clientY + 14 + box.height > innerHeight ? event.clientY - box.height - 14 : event.clientY + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}
const tooltip = (handler, event, item, value) => {
  if (value && event) showTip(event, value);
  else tip.hidden = true;
};
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  tip.hidden = true;
  pin(null);
});
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// A run that is pointed at, in a chart, a legend or a table, stands out in the charts of its section.
function light(section, id) {
  const shown = id ?? (pinned && pinned.section === section ? pinned.id : null);
  for (const one of views) {
    if (one.section === section && one.view.signal("picked") !== shown) one.view.signal("picked", shown).runAsync();
  }
  for (const place of document.querySelectorAll(`[data-of="${section}"] [data-run]`)) {
    place.classList.toggle("lit", shown !== null && place.dataset.run === shown);
  }
}
function pin(one) {
  const before = pinned;
  pinned = one;
  for (const button of document.querySelectorAll(".legend button")) {
    const here = one && button.closest("[data-of]").dataset.of === one.section;
    button.setAttribute("aria-pressed", String(Boolean(here && button.dataset.run === one.id)));
  }
  if (before) light(before.section, null);
  if (one) light(one.section, null);
}
for (const place of document.querySelectorAll("[data-run]")) {
  const section = place.closest("[data-of]").dataset.of;
  const id = place.dataset.run;
  for (const kind of ["mouseenter", "focusin"]) place.addEventListener(kind, () => light(section, id));
  for (const kind of ["mouseleave", "focusout"]) place.addEventListener(kind, () => light(section, null));
  if (place.tagName === "BUTTON") {
    place.addEventListener("click", () => {
      pin(pinned && pinned.section === section && pinned.id === id ? null : { section, id });
    });
  }
}

// Charts. Vega lies in the page deflated; its script, once whole, is one that the page's policy knows.
async function loadVega() {
  const packed = atob(document.getElementById("vega").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// The rows of a chart: made already, or a run's identity joined with its line of the report's data.
function rowsOf(section, name) {
  const made = data.rows[section][name];
  if (made) return made;
  const whole = data.report.sections.find((one) => one.id === section);
  const lines = name === "tail" ? whole.tail : whole.charts.find((one) => one.id === name).series;
  return lines.map((line) => ({ ...data.who[section][line.run], ...line }));
}
async function draw(place, spec) {
  const section = place.closest("[data-of]").dataset.of;
  const old = views.findIndex((one) => one.place === place);
  if (old >= 0) views.splice(old, 1)[0].view.finalize();
  const whole = { ...spec, datasets: { [spec.data.name]: rowsOf(section, spec.data.name) }, config: data.config };
  const result = await vegaEmbed(place, whole, {
    ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip, logLevel: 1,
  });
  const view = result.view;
  views.push({ place, section, view });
  const room = () => view.signal("room", place.clientWidth < 430 ? "narrow" : "wide").runAsync();
  view.addEventListener("mouseover", (event, item) => light(section, item?.datum?.id ?? null));
  view.addResizeListener(room);
  const svg = place.querySelector("svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", place.dataset.label);
  place.addEventListener("mouseleave", () => { tip.hidden = true; light(section, null); });
  await room();
}
async function drawAll() {
  await loadVega();
  for (const place of document.querySelectorAll(".chart[data-chart]")) {
    await draw(place, data.charts[place.dataset.chart][0]);
  }
  for (const choice of document.querySelectorAll("fieldset.choice")) {
    choice.addEventListener("change", (event) => {
      const place = document.getElementById(choice.dataset.for);
      draw(place, data.charts[place.dataset.chart][Number(event.target.value)]);
    });
  }
  root.dataset.drawn = "yes";
}

// Tables: sorted by a click on a head, and by Enter or Space on it.
const collator = new Intl.Collator("en", { numeric: true });
function sortBy(table, column, head) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    return { row, number: value === undefined ? null : value === "" ? NaN : Number(value), text: cell.textContent };
  });
  keyed.sort((a, b) => {
    if (a.number === null || b.number === null) return (up ? 1 : -1) * collator.compare(a.text, b.text);
    // What has no number stands last, whichever way.
    if (Number.isNaN(a.number) || Number.isNaN(b.number)) return Number.isNaN(a.number) - Number.isNaN(b.number);
    return (up ? 1 : -1) * (a.number - b.number);
  });
  body.append(...keyed.map((one) => one.row));
}
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sortBy(table, column, head));
  });
}

// Tables, copied in the order they have.
function cells(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => (cell.dataset.copy ?? cell.textContent).replace(/\s+/g, " ").trim()));
}
function asMarkdown(table) {
  const rows = cells(table).map((row) => row.map((text) => text.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replaceAll("<", "&lt;")));
  const rule = rows[0].map((_, i) => (i ? "---:" : "---"));
  return [rows[0], rule, ...rows.slice(1)].map((row) => `| ${row.join(" | ")} |`).join("\n") + "\n";
}
function asCsv(table) {
  const field = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return cells(table).map((row) => row.map(field).join(",")).join("\n") + "\n";
}
async function copy(button, text) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    // A page from disk has no clipboard in some browsers; a selection can be copied in all of them.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  const words = button.dataset.words ?? (button.dataset.words = button.textContent);
  button.textContent = done ? "copied" : "not copied";
  setTimeout(() => { button.textContent = words; }, 1500);
}
for (const button of document.querySelectorAll("button[data-copy]")) {
  const table = document.getElementById(button.dataset.table);
  button.addEventListener("click", () => copy(button, button.dataset.copy === "markdown" ? asMarkdown(table) : asCsv(table)));
}

// What is folded is printed, too.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details.printed:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => { for (const one of folded) one.open = false; });

drawAll();
