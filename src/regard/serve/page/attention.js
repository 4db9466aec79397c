// Who looks at whom: as a matrix, as lines between two columns of tokens, and with pickers for layer and head.

import { arrows, ask, bare, chip, choice, colour, counted, drawn, h, lately, percent, s, shade, short, tell } from "./dom.js";

const MOST_LINES = 1500;
const FAINT = 0.02; // shares below are no lines
const PALE = 0.5; // where none is larger, the largest is drawn as if it were all

/** A matrix of shares: rows look at columns. Arrow keys and the pointer go from cell to cell. */
export function matrix({ rows, columns, weights, hue = "read", label, say, from = 0, most = 1, largest = 30, numbers = false }) {
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
  const box = h("div", { class: "scroll" }, canvas);
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const whole = h("div", { class: "matrix" }, box, readout);
  const font = "12px " + colour("mono");
  const depth = (share) => shade((share - from) / (most - from || 1));
  let at = null;
  let letters = 18; // of a name
  let place; // cell size, and where the cells begin

  function draw() {
    const pen = canvas.getContext("2d");
    pen.font = font;
    const wide = (names) => Math.min(130, Math.max(...names.map((name) => pen.measureText(short(bare(name), letters)).width), 8));
    letters = Math.max(rows.length, columns.length) > 60 ? 9 : 18;
    const left = wide(rows) + 8;
    const above = 0.77 * wide(columns) + 14;
    const beyond = 0.64 * wide(columns.slice(-3));
    const cell = Math.max(3, Math.min(largest, Math.floor((box.clientWidth - left - beyond - 2) / columns.length)));
    const width = left + cell * columns.length + beyond + 2;
    const height = above + cell * rows.length + 2;
    const dense = Math.max(1, Math.ceil(11 / cell)); // every so many have room for a name
    const ratio = devicePixelRatio;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    pen.scale(ratio, ratio);
    pen.font = font;
    place = { left, above, cell };
    pen.fillStyle = colour("ink");
    pen.textBaseline = "middle";
    columns.forEach((name, j) => {
      if (j % dense && j !== at?.[1]) return;
      pen.save();
      pen.translate(left + cell * (j + 0.5), above - 5);
      pen.rotate((-50 * Math.PI) / 180);
      pen.globalAlpha = at && at[1] !== j ? 0.55 : 1;
      pen.fillText(short(bare(name), letters), 0, 0);
      pen.restore();
    });
    pen.textAlign = "right";
    rows.forEach((name, i) => {
      if (i % dense && i !== at?.[0]) return;
      pen.globalAlpha = at && at[0] !== i ? 0.55 : 1;
      pen.fillText(short(bare(name), letters), left - 6, above + cell * (i + 0.5));
    });
    pen.globalAlpha = 1;
    pen.textAlign = "left";
    const gap = cell > 13 ? 1 : 0;
    pen.fillStyle = colour("paper");
    pen.fillRect(left, above, cell * columns.length, cell * rows.length);
    pen.fillStyle = colour(hue);
    weights.forEach((row, i) =>
      row.forEach((share, j) => {
        pen.globalAlpha = depth(share);
        pen.fillRect(left + cell * j + gap, above + cell * i + gap, cell - 2 * gap, cell - 2 * gap);
      }),
    );
    pen.globalAlpha = 1;
    if (numbers && cell > 30) {
      pen.textAlign = "center";
      weights.forEach((row, i) =>
        row.forEach((share, j) => {
          pen.fillStyle = colour(depth(share) > 0.55 ? "card" : "ink");
          pen.fillText(share.toFixed(2), left + cell * (j + 0.5), above + cell * (i + 0.5));
        }),
      );
    }
    if (at) {
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(left + cell * at[1], above + cell * at[0], cell, cell);
    }
  }

  function go(i, j) {
    at = i === null ? null : [i, j];
    requestAnimationFrame(draw); // not now: the page may be about to change its size
    readout.textContent = at ? say(i, j) : "";
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!place) return;
    const { x, y } = canvas.getBoundingClientRect();
    const j = Math.floor((event.clientX - x - place.left) / place.cell);
    const i = Math.floor((event.clientY - y - place.above) / place.cell);
    if (!(i in rows) || !(j in columns)) return at && (go(null), tell(""));
    if (at?.[0] !== i || at?.[1] !== j) go(i, j);
    tell(say(i, j), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => (go(null), tell("")));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [i, j] = at ? [at[0] + step[0], at[1] + step[1]] : [0, 0];
    go(Math.max(0, Math.min(rows.length - 1, i)), Math.max(0, Math.min(columns.length - 1, j)));
  });
  drawn(box, draw);
  const mark = (i) => (i < 0 ? go(null) : go(i, weights[i].indexOf(Math.max(...weights[i]))));
  return Object.assign(whole, { mark });
}

/** Two columns of tokens and lines between them, the thicker the more. One row at a time, where one is chosen. */
export function web({ rows, columns, weights, row = "read", column = "read", label, say, most = 1 }) {
  const HIGH = 24;
  const side = (names, kind, props) => h("ol", props, names.map((name) => h("li", {}, chip(name, { class: kind, tip: name }))));
  const left = side(rows, row, { tabindex: "0", "aria-label": `${label}: who looks` });
  const right = side(columns, column, { "aria-label": `${label}: what at` });
  const high = HIGH * Math.max(rows.length, columns.length);
  // stretched to whatever room there is: no width is ever asked for, so none can be out of date
  const lines = s("svg", { "aria-hidden": "true", height: high, viewBox: `0 0 100 ${high}`, preserveAspectRatio: "none" });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const box = h("div", { class: `web ${row}` }, left, lines, right);
  const [asks, answers] = [left, right].map((list) => [...list.querySelectorAll(".tok")]);
  let now = -1;

  function draw() {
    let all = weights.flatMap((shares, i) => (now >= 0 && now !== i ? [] : shares.map((share, j) => [share, i, j])));
    all = all.filter(([share]) => share >= FAINT).sort((a, b) => b[0] - a[0]).slice(0, MOST_LINES).reverse();
    lines.replaceChildren(
      ...all.map(([share, i, j]) => {
        const [from, to] = [HIGH * (i + 0.5), HIGH * (j + 0.5)];
        const d = `M0 ${from}C40 ${from} 60 ${to} 100 ${to}`;
        const line = s("path", { d, "stroke-opacity": shade(share / most).toFixed(3) });
        line.style.strokeWidth = String(0.6 + (3 * share) / most);
        return line;
      }),
    );
    asks.forEach((token, i) => token.classList.toggle("on", i === now));
    answers.forEach((token, j) => {
      const share = now < 0 ? 0 : weights[now][j];
      const depth = Math.round(100 * shade(share / most));
      const line = `inset 0 -3px 0 color-mix(in srgb, var(--${row}) ${depth}%, transparent)`;
      token.style.boxShadow = share >= FAINT ? line : "";
    });
    const best = now < 0 ? [] : weights[now].map((share, j) => [share, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    readout.textContent = best.map(([, j]) => say(now, j)).join(" · ");
  }

  const whole = h("div", {}, h("div", { class: "scroll" }, box), readout);
  function go(i) {
    if (i === now) return;
    now = i;
    draw();
    whole.dispatchEvent(new CustomEvent("row", { detail: i }));
  }
  left.addEventListener("pointerover", (event) => go(asks.indexOf(event.target.closest(".tok"))));
  left.addEventListener("pointerleave", () => document.activeElement !== left && go(-1));
  left.addEventListener("click", (event) => go(asks.indexOf(event.target.closest(".tok"))));
  left.addEventListener("blur", () => go(-1));
  arrows(left, () => now, rows.length, (to) => (go(to), asks[to].scrollIntoView({ block: "nearest" })));
  draw();
  return whole;
}

/** A bar from nothing to the most there is, in the shades that a matrix has. */
function ramp(hue, most) {
  const bar = h("i");
  const draw = () => {
    const stops = [0, 0.05, 0.1, 0.25, 0.5, 0.75, 1];
    const mixed = (share) => `color-mix(in srgb, var(--${hue}) ${100 * shade(share)}%, var(--paper))`;
    const shades = stops.map((share) => `${mixed(share)} ${100 * share}%`);
    bar.style.background = `linear-gradient(90deg, ${shades.join(", ")})`;
  };
  drawn(bar, draw);
  return h("span", { class: "ramp" }, "0", bar, most === 1 ? "100 %" : percent(most));
}

/** Base64 of bytes, a square of them, as a small picture. */
function thumb(data, [height, width], hue) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const canvas = h("canvas", { width: width, height: height, "aria-hidden": "true" });
  const draw = () => {
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = colour(hue);
    bytes.forEach((byte, i) => {
      pen.globalAlpha = shade(byte / 255);
      pen.fillRect(i % width, Math.floor(i / width), 1, 1);
    });
  };
  return drawn(canvas, draw);
}

// -- pickers ------------------------------------------------------------------------------

const KINDS = {
  "encoder.self": "Encoder", "decoder.self": "Decoder", "decoder.cross": "Decoder → encoder", "text.self": "Text",
};

/** Layers by what they are: { "encoder.self": ["encoder.0.self", ...] }. */
export function layers(model) {
  const found = {};
  for (const { tower, layers } of model.attention)
    for (const layer of layers) (found[`${tower}.${layer.split(".")[1]}`] ??= []).push(`${tower}.${layer}`);
  return found;
}

/** What a layer's rows and columns are: read or written. */
export function sides(model, layer) {
  if (model.shape !== "encoder-decoder" || layer.startsWith("encoder")) return ["read", "read"];
  return layer.endsWith("cross") ? ["write", "read"] : ["write", "write"];
}

/** The attention of a model: `given()` says to what, or null where there is nothing yet. Returns [element, refresh]. */
export function attention(model, given, title = "What it looks at") {
  const known = layers(model);
  const kinds = Object.keys(known).filter((kind) => kind in KINDS && !(model.images && kind === "encoder.self"));
  let layer = null; // the server's choice
  let head = null;
  let look = innerWidth > 900 ? "both" : "lines";
  const problem = h("p", { class: "bad", role: "status" });
  const pickers = h("div", { class: "row" });
  const heads = h("fieldset", { class: "heads", "aria-label": "Head" });
  const view = h("div");
  const note = h("span", { class: "note" });
  const legend = h("span");
  const ways = [["lines", "Lines"], ["matrix", "Matrix"], ["both", "Both"]];
  const looks = choice("Drawn as", ways, look, (to) => ((look = to), show()));
  const bar = h("div", { class: "row" }, looks, note, h("span", { class: "space" }), legend);
  const box = h("details", { class: "card", open: true }, h("summary", {}, title), pickers, heads, bar, problem, view);
  let seen = null;

  if (!kinds.length) return [h("div", { hidden: true }), () => {}];

  function pick() {
    pickers.replaceChildren(
      ...kinds.map((kind) => {
        const options = known[kind].map((name) => [name, name.split(".")[1]]);
        const go = (to) => ((layer = to), (head = null), refresh.now());
        const picker = choice(`Layer, ${KINDS[kind]}`, options, seen.layer, go);
        return h("div", { class: "row" }, h("span", { class: "legend" }, KINDS[kind]), picker);
      }),
    );
    const [hue] = sides(model, seen.layer);
    const name = `head${seen.layer}`;
    const radio = (of, label, picture) => {
      const go = () => ((layer = seen.layer), (head = of), refresh.now());
      const how = { type: "radio", name, value: String(of), checked: of === seen.head, "aria-label": label, onchange: go };
      return h("label", { tip: label }, h("input", how), picture, String(of));
    };
    const held = heads.contains(document.activeElement);
    heads.replaceChildren(
      ...seen.thumbs.map((data, i) => radio(i, `Head ${i}`, thumb(data, seen.thumb, hue))),
      ...(seen.thumbs.length > 1 ? [radio("mean", "Mean of all heads", thumb(seen.mean, seen.thumb, hue))] : []),
    );
    if (held) heads.querySelector(":checked")?.focus();
  }

  function show() {
    if (!seen) return;
    const [row, column] = sides(model, seen.layer);
    const { rows, columns, weights } = seen;
    const say = (i, j) => `${short(rows[i], 30)} → ${short(columns[j], 30)}: ${percent(weights[i][j])}`;
    const label = `Attention of layer ${seen.layer}, ${seen.head === "mean" ? "all heads" : `head ${seen.head}`}`;
    const shown = { both: [web, matrix], lines: [web], matrix: [matrix] }[look];
    view.className = shown.length > 1 ? "panes" : "";
    const largest = Math.max(...weights.map((shares) => Math.max(...shares)));
    const most = largest < PALE && largest > 0 ? largest : 1;
    const parts = shown.map((draw) => draw({ rows, columns, weights, row, column, hue: row, label, say, most }));
    if (parts.length > 1) parts[0].addEventListener("row", ({ detail }) => parts[1].mark(detail));
    view.replaceChildren(...parts);
    legend.replaceChildren(ramp(row, most));
    const [r, c] = seen.block;
    const blocks = `${counted(seen.size[0], "token")}: a row is ${r}, a column ${c} of them, with the strongest look`;
    note.textContent = Math.max(r, c) > 1 ? blocks : "";
  }

  const work = async (signal) => {
    const what = given();
    if (!what || !box.open) return;
    view.classList.add("stale");
    try {
      const asked = { model: model.name, ...what, layer, ...(head === "mean" ? { mean: true } : { head }) };
      seen = await ask("look/attention", asked, signal);
      seen.head ??= "mean";
      problem.textContent = "";
      pick();
      show();
    } finally {
      view.classList.remove("stale");
    }
  };
  const refresh = lately(work, (line) => (problem.textContent = line), 120);
  box.addEventListener("toggle", () => box.open && refresh.now());
  return [box, refresh];
}
