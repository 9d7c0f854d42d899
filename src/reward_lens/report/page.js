// Folds, depth sliders, and what the pair browser is drawn with. All else of the page stands without
// script; this one loads nothing. The template puts it into a strict block of its own, so that no name
// is global.
// What users wrote reaches the page as text nodes only.

const find = (id) => document.getElementById(id);

function filled(made, attributes, inside) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}
const make = (tag, attributes, ...inside) => filled(document.createElement(tag), attributes, inside);
const draw = (tag, attributes, ...inside) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, inside);

// ---- Folds and links -----------------------------------------------------------------------------

const foldAll = (open) => document.querySelectorAll("details").forEach((d) => (d.open = open));

function reveal(target) {
  const own = target.querySelector(":scope > details");
  if (own) own.open = true;
  for (let d = target.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
  target.scrollIntoView();
}

// On paper every section is open; of tables and receipts those that the reader has open. What was
// closed is closed again afterwards.
let closed = [];
addEventListener("beforeprint", () => {
  closed = document.querySelectorAll("details.fold:not([open]), details.more:not([open])");
  closed.forEach((d) => (d.open = true));
});
addEventListener("afterprint", () => closed.forEach((d) => (d.open = false)));

function follow() {
  const hash = location.hash.slice(1);
  if (hash.startsWith("pair=")) browser?.open(decoded(hash.slice(5)));
  else if (hash && find(decoded(hash))) reveal(find(decoded(hash)));
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // no percent-encoding: taken as it stands
  }
}

// ---- Numbers -------------------------------------------------------------------------------------

// What Python's format(x, ".{digits}g") writes: the page and the evidence show the same digits.
function general(x, digits) {
  if (x === null) return "–";
  if (x === 0) return Object.is(x, -0) ? "-0" : "0";
  const strip = (s) => (s.includes(".") ? s.replace(/\.?0+$/, "") : s);
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  if (power >= -4 && power < digits) return strip(x.toFixed(digits - 1 - power));
  return `${strip(mantissa)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

// A number that says which place of which evidence it is from.
const traced = (path, place, text) =>
  make("data", { value: path.replace(/\{(\w+)\}/g, (_, name) => place[name]) }, text);

// What the numbers of a table have in common stands once, at the table, row and column, which keeps
// the file small.
for (const table of document.querySelectorAll("table"))
  for (const row of table.querySelectorAll("tr[data-of]"))
    for (const number of row.querySelectorAll("data")) {
      const said = number.value || table.tHead.rows[0].cells[number.closest("td").cellIndex].dataset.of;
      const whole = /^[^|]*\|[^|]*\|/.test(said);
      number.value = whole ? said : (table.dataset.of ?? "") + row.dataset.of + said;
    }

// ---- Depth: one state, moved by any slider -------------------------------------------------------

let depth = Infinity;
const watchers = new Set();

function slider(input, last, word, show) {
  const watch = () => {
    const at = Math.min(depth, last);
    input.value = at;
    input.setAttribute("aria-valuetext", `${word} ${at} of ${last}`);
    show(at);
  };
  input.max = last;
  input.oninput = () => {
    depth = Number(input.value);
    watchers.forEach((w) => w());
  };
  watchers.add(watch);
  watch();
  return watch;
}

// The lines of a drawing become faint, and what comes back draws them strong up to a depth. Points
// are found by their place, since a line may have gaps.
function traceable(svg) {
  const lines = [...svg.querySelectorAll("polyline.line")].map((line) => {
    const points = line.getAttribute("points").split(" ").map((p) => p.split(",").map(Number));
    const strong = line.cloneNode();
    const dot = draw("circle", { class: `now ${line.classList[1]}`, r: 5 });
    line.classList.add("later");
    line.after(strong);
    return { points, strong, dot };
  });
  const places = [...new Set(lines.flatMap((l) => l.points.map((p) => p[0])))].sort((a, b) => a - b);
  const marker = draw("line", { class: "marker", y1: svg.dataset.top, y2: svg.viewBox.baseVal.height - 50 });
  svg.append(marker, ...lines.map((l) => l.dot));
  return (at) => {
    const x = places[Math.min(at, places.length - 1)];
    marker.setAttribute("x1", x);
    marker.setAttribute("x2", x);
    for (const { points, strong, dot } of lines) {
      const early = points.filter((p) => p[0] <= x);
      strong.setAttribute("points", early.join(" "));
      dot.setAttribute("cx", early.at(-1)?.[0] ?? -9);
      dot.setAttribute("cy", early.at(-1)?.[1] ?? -9);
    }
  };
}

// A slider under a figure reads its numbers off the table beside it: group, step, then values.
function figureSlider(box) {
  const table = box.parentElement.querySelector(":scope > details[data-steps] table");
  const [group, word, ...titles] = [...table.tHead.rows[0].cells].map((c) => c.textContent);
  const steps = new Map();
  for (const { cells } of table.tBodies[0].rows) {
    const step = cells[1].textContent;
    steps.set(step, [...(steps.get(step) ?? []), [...cells]]);
  }
  const names = [...steps.keys()];
  const move = traceable(box.previousElementSibling.querySelector("svg"));
  const before = { low: " (95 % interval ", high: " to " };
  slider(box.querySelector("input"), names.length - 1, word, (at) => {
    const lines = steps.get(names[at]).map(([name, , ...values]) => {
      const line = make("span", {}, `${group} ${name.textContent}`);
      values.forEach((cell, k) => {
        line.append(before[titles[k]] ?? `, ${titles[k]} `, ...cell.cloneNode(true).childNodes);
        if (titles[k] === "high") line.append(")");
      });
      return line;
    });
    box.querySelector("output").replaceChildren(`${word} ${names[at]} of ${names.at(-1)}`, ...lines);
    move(at);
  });
  box.hidden = false;
}

// ---- Beginning -----------------------------------------------------------------------------------

document.querySelectorAll("[data-slider]").forEach(figureSlider);
find("open-all").onclick = () => foldAll(true);
find("close-all").onclick = () => foldAll(false);
find("folds").hidden = false;
addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (link && link.hash === location.hash) follow(); // no change of the address, so none is heard
});
// Pairs are packed: gzip, in base64. Nothing is fetched.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(plain).text());
}
let browser = null;
(async () => {
  const block = find("browser-data");
  if (block && "DecompressionStream" in window) browser = pairBrowser(await unpacked(block.textContent));
  follow();
  performance.mark("page ready");
})();
