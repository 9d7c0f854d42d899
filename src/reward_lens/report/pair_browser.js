// The pair browser: list, search, one pair side by side, its tokens and its curve. It stands in one
// block with page.js, whose helpers it uses.

function pairBrowser(data) {
  find("pair-about").append(...(data.about ?? []).map((said) => make("p", {}, said)));
  find("browser").hidden = false;
  find("unscripted").hidden = true;
  if (!data.pairs.length) {
    for (const part of find("browser").children) part.hidden = part.id !== "pair-about";
    return { open: () => reveal(find("browser")) };
  }
  const ROWS = 25; // drawn at a time: a list of hundreds is slow
  const [list, more, count, detail] = ["pair-list", "pair-more", "pair-count", "pair-detail"].map(find);
  const [search, sort, subset] = ["pair-search", "pair-sort", "pair-subset"].map(find);
  let matching = [], pair = null, kind = null, asked = data.maps[0]?.key, unhear = null;

  // An id that begins with its subset says it already.
  const told = (p) => p.subset && p.id.startsWith(p.subset) && !/^[\p{L}\p{N}]/u.test(p.id.slice(p.subset.length));
  const tag = (p) => (told(p) ? "" : make("span", { class: "tag" }, p.subset || "no subset"));
  const numbers = (p) =>
    data.columns.map((c) =>
      make("span", { class: "number" }, c.title, " ", traced(c.path, p, p.n[c.key]), " ", c.unit));

  function filter() {
    const words = search.value.trim().toLowerCase();
    const { by, abs, down } = data.sorts.find((s) => s.key === sort.value);
    const value = (p) => (by in p.r ? (abs && p.r[by] !== null ? Math.abs(p.r[by]) : p.r[by]) : p[by]);
    const has = (p) => [p.id, p.subset, ...Object.values(p.t).map((t) => t[0])].some(
      (text) => text.toLowerCase().includes(words));
    matching = data.pairs.filter((p) => [p.subset, null].includes(kind) && has(p));
    matching.sort((p, q) => {
      const [a, b] = [value(p), value(q)];
      if (a === null || b === null) return (a === null) - (b === null); // unknown: last
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
    list.replaceChildren();
    extend();
    const all = data.pairs.length, others = data.total - all;
    const where = data.sidecar ? `in ${data.sidecar}, which this page does not read` : "not on this page";
    count.textContent =
      `${matching.length || "None"} of ${all} ${others ? "embedded pairs" : "pairs"} ` +
      (matching.length === 1 ? "matches" : "match") +
      (others ? `; ${others.toLocaleString("en")} more were scored and are ${where}.` : ".");
  }

  // What is read beside the list is always one of the list: after a search the first of it.
  function narrow() {
    filter();
    detail.hidden = !matching.length;
    if (matching.length) select(matching[0]);
  }

  function extend() {
    const drawn = list.children.length;
    for (const p of matching.slice(drawn, drawn + ROWS)) {
      const row = make("button", { type: "button" }, p.id, " ", tag(p), ...numbers(p));
      row.pair = p;
      row.onclick = () => go(p);
      list.append(make("li", {}, row));
    }
    const left = matching.length - list.children.length;
    more.hidden = !left;
    more.textContent = `Show ${Math.min(left, ROWS)} more of ${left}`;
    mark();
  }

  function mark() {
    for (const row of list.querySelectorAll("button"))
      if (row.pair === pair) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
  }

  // By the address, so that a pair can be linked to and the way back leads to the one before.
  function go(p) {
    const hash = `#pair=${encodeURIComponent(p.id)}`;
    if (location.hash === hash) follow();
    else location.hash = hash;
  }

  function open(id) {
    const found = data.pairs.find((p) => p.id === id);
    if (!found) {
      count.textContent = `The pair ${id} is not among the ${data.pairs.length} on this page.`;
      return reveal(find("browser"));
    }
    if (!matching.includes(found)) {
      search.value = "";
      subset.selectedIndex = 0;
      kind = null;
      filter();
    }
    detail.hidden = false;
    select(found);
    reveal(detail);
    detail.focus({ preventScroll: true });
  }

  function select(p) {
    pair = p;
    mark();
    find("pair-title").replaceChildren(p.id, " ", tag(p));
    find("pair-numbers").replaceChildren(...numbers(p));
    const sides = Object.values(p.m ?? {});
    for (const r of radios) r.disabled = Boolean(r.value) && !sides.some((s) => s.v[r.value]);
    find("pair-maps").hidden = !sides.length;
    texts();
    curve();
  }

  // ---- Texts and tokens

  function text([written, left]) {
    const said = `[${left.toLocaleString("en")} characters are left out at […]]`;
    return make("p", { class: "text" }, written, ...(left ? [make("span", { class: "left-out" }, said)] : []));
  }

  function texts() {
    // The shading that was asked for or, where this pair does not have it, the first that it has.
    const usable = radios.filter((r) => !r.disabled);
    const radio = usable.find((r) => r.value === asked) ?? usable[0];
    radio.checked = true;
    const map = data.maps.find((m) => m.key === radio.value);
    const { prompt } = pair.t;
    find("pair-key").hidden = find("token-readout").hidden = !map;
    find("token-readout").textContent = "Point at a token, or go left and right, to read its values.";
    if (map)
      find("map-note").textContent =
        `Shown: ${map.title}; full shade ${map.full} ${map.unit}, one scale for all texts. ${map.note} ${map.labels}`;
    find("pair-prompt").replaceChildren(...(map || !prompt?.[0] ? [] : [make("h4", {}, "prompt"), text(prompt)]));
    find("pair-sides").replaceChildren(...data.sides.map((s) =>
      make("div", {},
        make("h4", {}, s.title, ...(s.score ? [", score ", traced(s.score, pair, pair.s[s.key])] : [])),
        map && pair.m[s.key] ? tokens(pair.m[s.key], map.key, s) : text(pair.t[s.key]))));
  }

  function tokens(side, key, { key: name, title }) {
    const spans = side.tokens.map((token, k) => {
      const v = side.v[key]?.[k] ?? 0;
      const kinds = [v > 0 ? "up" : v < 0 ? "down" : "", k < side.start || k >= side.end ? "context" : "",
        k === side.read ? "read" : ""];
      const span = make("i", { class: kinds.join(" "), role: "option", id: `token-${name}-${k}`,
        style: `--shade:${Math.min(Math.abs(v), 1000) * 0.045}%` }, token.replaceAll("\n", "⏎\n"));
      if (!token.trim()) span.setAttribute("aria-label", "space");
      if (k === side.read) span.append(make("b", {}, "read here"));
      return span;
    });
    const box = make("div", { class: "tokens", tabindex: 0, role: "listbox", "aria-orientation": "horizontal",
      "aria-label": `Tokens of the ${title} side` }, ...spans);
    let at = -1;
    const point = (k) => {
      if (!spans[k] || k === at) return;
      spans[at]?.removeAttribute("aria-selected");
      spans[k].setAttribute("aria-selected", "true");
      box.setAttribute("aria-activedescendant", spans[k].id);
      at = k;
      const values = data.maps.filter((m) => side.v[m.key]).map((m) => {
        const v = side.v[m.key][k];
        const size = general((Math.abs(v) * m.full) / 1000, 2);
        return `${m.title} ${v === null ? "–" : `${v < 0 ? "−" : "+"}${size} ${m.unit}`}`;
      });
      find("token-readout").textContent =
        `${title}, token ${k + 1} of ${spans.length} “${side.tokens[k]}”` +
        `${k === side.read ? ", read here" : ""}: ${values.join("; ")}`;
    };
    box.onmouseover = box.onclick = (event) => point(spans.indexOf(event.target.closest("i")));
    box.onfocus = () => at < 0 && point(side.read ?? 0);
    box.onkeydown = (event) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: spans.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      point(to);
      spans[at].scrollIntoView({ block: "nearest" });
    };
    return box;
  }

  // ---- The margin of one pair by depth

  function curve() {
    watchers.delete(unhear);
    find("pair-curve").hidden = !(data.curves && pair.c);
    if (find("pair-curve").hidden) return;
    const { readings, depths, unit, path, labels } = data.curves;
    const p = pair, svg = plot(readings.map((r) => p.c[r]), readings, unit);
    find("pair-plot").replaceChildren(svg);
    find("curve-labels").textContent = labels;
    const move = traceable(svg);
    unhear = slider(find("pair-depth"), depths - 1, "depth", (d) => {
      move(d);
      find("pair-depth-readout").replaceChildren(`depth ${d} of ${depths - 1}`, ...readings.map((r) =>
        make("span", {}, `${r}: margin `,
          traced(path, { r, d, id: encodeURIComponent(p.id) }, general(p.c[r][d], 3)), ` ${unit}`)));
    });
  }

  function plot(lines, names, unit) {
    const tall = 22, top = 12 + tall * names.length; // the names stand above the axes
    const [width, height, left, right, bottom] = [640, 228 + top, 80, 14, 50]; // as the other figures
    const values = lines.flat().filter((v) => v !== null).concat(0);
    const [least, most, last] = [Math.min(...values), Math.max(...values), lines[0].length - 1];
    const room = 0.06 * (most - least) || 1, low = least - room, high = most + room;
    const x = (d) => (left + (d / (last || 1)) * (width - left - right)).toFixed(1);
    const y = (v) => (height - bottom - ((v - low) / (high - low)) * (height - top - bottom)).toFixed(1);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "data-top": top, role: "img", "aria-label": "Margin of this pair by depth" });
    const write = (at, said) => svg.append(draw("text", at, said));
    const size = 10 ** Math.floor(Math.log10((high - low) / 4));
    const step = size * [1, 2, 5, 10].find((s) => s * size >= (high - low) / 4);
    for (let k = Math.ceil(low / step); k * step <= high; k++) {
      const at = y(k * step);
      svg.append(draw("line", { class: k ? "grid" : "zero", x1: left, x2: width - right, y1: at, y2: at }));
      write({ class: "tick", x: left - 6, y: +at + 4, "text-anchor": "end" }, general(k * step + 0, 3));
    }
    for (let d = 0; d <= last; d += Math.ceil(last / 7) || 1)
      write({ class: "tick", x: x(d), y: height - bottom + 18, "text-anchor": "middle" }, d);
    write({ class: "label", x: (width + left) / 2, y: height - 8, "text-anchor": "middle" }, "depth (layers)");
    write({ class: "label", transform: `translate(14 ${(top - 12 + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" },
      `margin (${unit})`);
    lines.forEach((line, k) => {
      const points = line.flatMap((v, d) => (v === null ? [] : [`${x(d)},${y(v)}`])).join(" ");
      const [x1, at] = [left + 12, 12 + tall * k];
      svg.append(draw("polyline", { class: `line s${k}`, points }),
        draw("line", { class: `line s${k}`, x1, x2: x1 + 34, y1: at, y2: at }));
      write({ class: "tick", x: x1 + 40, y: at + 4 }, names[k]);
    });
    return svg;
  }

  // ---- Beginning

  const radios = [...data.maps, { key: "", title: "nothing: the plain texts" }].map((m) => {
    const radio = make("input", { type: "radio", name: "map", value: m.key, id: `map-${m.key || "none"}` });
    find("pair-maps").append(make("label", {}, radio, ` ${m.title}`));
    radio.onchange = () => {
      asked = m.key;
      texts();
    };
    return radio;
  });
  sort.append(...data.sorts.map((s) => make("option", { value: s.key }, s.title)));
  const subsets = [...new Set(data.pairs.map((p) => p.subset))].sort();
  const size = (s) => data.pairs.filter((p) => p.subset === s).length;
  subset.append(make("option", {}, "all"), ...subsets.map((s) => make("option", {}, `${s || "no subset"} (${size(s)})`)));
  subset.onchange = () => {
    kind = [null, ...subsets][subset.selectedIndex];
    narrow();
  };
  search.oninput = narrow;
  sort.onchange = filter;
  more.onclick = () => {
    const next = list.children.length;
    extend();
    list.children[next].firstChild.focus();
  };
  find("pair-back").onclick = () => (list.querySelector("[aria-current]") ?? search).focus();
  narrow();
  return { open };
}
