/* Attention to be looked at, in a report: a grid of all heads, one head as a heatmap or as lines between two rows of
   tokens, and an image under what looks at it.

     showAttention(element, data, more)

   data is what regard.look.report.data() makes. more(layer, head), optional, gives a promise of the full weights of a
   head that data has only small, in the form that data.full has them. Text reaches the page as textContent only. */
"use strict";

function showAttention(root, data, more) {
  const layers = data.layers;
  const state = { layer: data.chosen.layer, head: data.chosen.head, row: null, column: null, view: "heat" };
  const full = Object.assign({}, data.full);
  const key = () => state.layer + "/" + state.head;
  let held = {}; // what was decoded and painted of the chosen head

  // -- numbers from text ------------------------------------------------------------------

  function bytes(text) {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }

  // Square roots of weights, so that small ones are told apart: of 8 bits when small, of 16 in full.
  function small(layer, head) {
    const [t, s] = layer.small.shape, all = layer.small.bytes || (layer.small.bytes = bytes(layer.small.data));
    const part = all.subarray(head * t * s, (head + 1) * t * s);
    return { t, s, at: (i, j) => (part[i * s + j] / 255) ** 2, exact: t === rows(layer).length && s === columns(layer).length };
  }

  function whole(layer, text) {
    const raw = bytes(text), view = new DataView(raw.buffer), t = rows(layer).length, s = columns(layer).length;
    return { t, s, at: (i, j) => (view.getUint16(2 * (i * s + j), true) / 65535) ** 2, exact: true };
  }

  function weights() {
    const layer = layers[state.layer], text = full[key()];
    if (held.key !== key() || held.text !== text) {
      held = { key: key(), text, w: text === undefined ? small(layer, state.head) : whole(layer, text) };
    }
    return held.w;
  }

  const rows = (layer) => data.names[layer.rows];
  const columns = (layer) => data.names[layer.columns];
  const percent = (x) => (x >= 0.0995 ? (100 * x).toFixed(1) : (100 * x).toFixed(2)) + "%";

  // -- the page ---------------------------------------------------------------------------

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "text") element.textContent = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const told = make("p", { class: "att-told", "aria-live": "polite" });
  const note = make("p", { class: "att-note" });
  const canvas = make("canvas", { class: "att-heat", tabindex: "0", role: "img", "aria-label": "weights of the chosen head" });
  const lines = make("canvas", { class: "att-lines", tabindex: "0", role: "img", "aria-label": "lines from tokens to what they look at" });
  const stage = make("div", { class: "att-scroll" });
  const picture = data.image ? make("div", { class: "att-image" }) : null;
  const caption = make("p", { class: "att-caption" });
  const layerPicker = make("select", { "data-pick": "layer", onchange: () => choose(+layerPicker.value, 0) });
  const headPicker = make("select", { "data-pick": "head", onchange: () => choose(state.layer, +headPicker.value) });
  layers.forEach((layer, i) => layerPicker.append(make("option", { value: i, text: layer.name })));
  const buttons = [["heat", "heatmap"], ["lines", "lines"]].map(([view, name]) =>
    make("button", { type: "button", "data-view": view, text: name, onclick: () => { state.view = view; draw(); } }));

  const grid = make("div", { class: "att-grid", role: "group", "aria-label": "all heads" });
  const widest = Math.max(...layers.map((layer) => layer.heads));
  grid.style.gridTemplateColumns = "max-content repeat(" + widest + ", max-content)";
  grid.append(make("span", {}));
  for (let h = 0; h < widest; h++) grid.append(make("span", { class: "att-top", text: h }));
  const cells = layers.map((layer, i) => {
    grid.append(make("span", { text: layer.name }));
    const own = [];
    for (let h = 0; h < widest; h++) {
      if (h >= layer.heads) { grid.append(make("span", {})); continue; }
      const name = layer.name + ", head " + h + ", " + layer.entropy[h].toFixed(2) + " bits";
      own.push(make("button", { type: "button", title: name, "aria-label": name, onclick: () => choose(i, h) }, make("canvas", {})));
      grid.append(own[h]);
    }
    return own;
  });

  root.classList.add("att");
  root.replaceChildren(
    make("div", { class: "att-bar" },
      make("label", {}, "layer ", layerPicker), make("label", {}, "head ", headPicker), ...buttons),
    note,
    make("div", { class: "att-body" },
      make("div", { class: "att-scroll" }, grid),
      make("div", {}, told, make("div", { class: "att-views" }, stage, ...(picture ? [make("div", { class: "att-photo" }, picture, caption)] : [])))));

  // -- drawing ----------------------------------------------------------------------------

  function style(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }

  // A share that is as large as all others' is a quarter dark, of four tokens as of four hundred.
  const power = (s) => Math.min(1, Math.log(4) / Math.log(Math.max(s, 2)));

  function paint(target, at, t, s) {
    const p = power(s);
    const [r, g, b] = style("--att-hue").split(",").map(Number);
    target.width = s; target.height = t;
    const context = target.getContext("2d"), image = context.createImageData(s, t);
    for (let i = 0, k = 0; i < t; i++) for (let j = 0; j < s; j++, k += 4) {
      image.data[k] = r; image.data[k + 1] = g; image.data[k + 2] = b;
      image.data[k + 3] = 255 * Math.min(1, at(i, j) ** p);
    }
    context.putImageData(image, 0, 0);
  }

  function sharp(target, width, height) { // a canvas with the screen's own pixels
    const scale = window.devicePixelRatio || 1;
    target.width = Math.round(width * scale); target.height = Math.round(height * scale);
    target.style.width = width + "px"; target.style.height = height + "px";
    const context = target.getContext("2d");
    context.scale(scale, scale);
    context.font = "12px ui-monospace, monospace";
    context.textBaseline = "middle";
    return context;
  }

  function short(name, most) { return name.length > most ? name.slice(0, most - 1) + "…" : name; }

  let place = null; // where the heatmap's cells are

  function heat(w) {
    const layer = layers[state.layer];
    const mine = w.exact ? rows(layer) : blocks(rows(layer), w.t), theirs = w.exact ? columns(layer) : blocks(columns(layer), w.s);
    const measure = canvas.getContext("2d");
    measure.font = "12px ui-monospace, monospace";
    const wide = (names) => Math.max(0, ...names.map((name) => measure.measureText(short(name, 16)).width));
    const left = Math.min(150, wide(mine)) + 10, above = Math.min(150, wide(theirs)) + 10;
    const wanted = data.image ? 480 : 640, seen = stage.parentElement.clientWidth - left - 24; // as wide as it is shown
    const room = seen > 100 ? Math.min(wanted, Math.max(seen, 160)) : wanted;
    const cell = Math.min(36, Math.floor(room / Math.max(w.t, w.s)));
    const side = cell >= 9 ? cell : Math.max(1, cell, Math.min(4, 900 / Math.max(w.t, w.s))); // long texts are scrolled
    const context = sharp(canvas, left + side * w.s + 2, above + side * w.t + 2);
    if (!held.buffer) paint(held.buffer = document.createElement("canvas"), w.at, w.t, w.s);
    context.imageSmoothingEnabled = false;
    context.drawImage(held.buffer, left, above, side * w.s, side * w.t);
    context.strokeStyle = style("--att-line");
    context.strokeRect(left - .5, above - .5, side * w.s + 1, side * w.t + 1);
    const every = Math.max(1, Math.ceil(14 / side)); // names that do not touch
    context.fillStyle = style("--att-dim");
    mine.forEach((name, i) => {
      if (i % every && i !== state.row) return;
      if (state.row !== null && i !== state.row && Math.abs(i - state.row) * side < 14) return;
      context.fillStyle = style(i === state.row ? "--att-ink" : "--att-dim");
      context.textAlign = "right";
      context.fillText(short(name, 16), left - 6, above + side * (i + .5));
    });
    theirs.forEach((name, j) => {
      if (j % every && j !== state.column) return;
      if (state.column !== null && j !== state.column && Math.abs(j - state.column) * side < 14) return;
      context.save();
      context.translate(left + side * (j + .5), above - 6);
      context.rotate(-Math.PI / 2);
      context.fillStyle = style(j === state.column ? "--att-ink" : "--att-dim");
      context.textAlign = "left";
      context.fillText(short(name, 16), 0, 0);
      context.restore();
    });
    if (state.row !== null) {
      context.strokeStyle = style("--att-mark");
      context.strokeRect(left - .5, above + side * state.row - .5, side * w.s + 1, Math.max(side, 1) + 1);
      if (state.column !== null)
        context.strokeRect(left + side * state.column - .5, above + side * state.row - .5, Math.max(side, 1) + 1, Math.max(side, 1) + 1);
    }
    place = { left, above, side };
  }

  // The names of what was put together, first and last.
  function blocks(names, n) {
    const bound = (i) => Math.floor(i * names.length / n);
    return Array.from({ length: n }, (_, i) => {
      const from = bound(i), to = bound(i + 1) - 1;
      return to > from ? names[from] + " … " + names[to] : names[from];
    });
  }

  function drawLines(w) {
    const layer = layers[state.layer];
    const mine = w.exact ? rows(layer) : blocks(rows(layer), w.t), theirs = w.exact ? columns(layer) : blocks(columns(layer), w.s);
    const n = Math.max(w.t, w.s), step = n <= 40 ? 20 : Math.max(3, Math.min(20, 1600 / n));
    const name = 150, between = 190, height = step * n + 8;
    const context = sharp(lines, 2 * name + between, height);
    const rgb = style("--att-hue"), y = (i) => 4 + step * (i + .5);
    const p = power(w.s);
    for (let i = 0; i < w.t; i++) { // of each row the strongest three; of the chosen row all
      if (state.row !== null && i !== state.row) continue;
      for (const j of strongest(w, i, state.row === null ? 3 : w.s)) {
        const share = w.at(i, j);
        if (share < .001) break;
        context.strokeStyle = "rgba(" + rgb + "," + Math.min(1, share ** p) + ")";
        context.lineWidth = .5 + 3.5 * share;
        context.beginPath();
        context.moveTo(name + 4, y(i));
        context.lineTo(name + between - 4, y(j));
        context.stroke();
      }
    }
    const every = Math.max(1, Math.ceil(13 / step));
    [[mine, "right", name, state.row], [theirs, "left", name + between, null]].forEach(([names, align, x, marked]) => names.forEach((word, i) => {
      const near = marked !== null && i !== marked && Math.abs(i - marked) * step < 13;
      if ((i % every && i !== marked) || near) return;
      context.textAlign = align;
      context.fillStyle = style(i === marked ? "--att-mark" : "--att-ink");
      context.fillText(short(word, 18), x, y(i));
    }));
    place = { lines: true, step };
  }

  function strongest(w, row, n) {
    if (n < w.s) { // for every row of a long text, without sorting
      const best = [];
      for (let j = 0; j < w.s; j++) {
        let k = best.length;
        while (k && w.at(row, best[k - 1]) < w.at(row, j)) k--;
        if (k < n) { best.splice(k, 0, j); if (best.length > n) best.pop(); }
      }
      return best;
    }
    return Array.from({ length: w.s }, (_, j) => j).sort((a, b) => w.at(row, b) - w.at(row, a));
  }

  function over(w) { // the image under what a row looks at; without one, under what reaches the head
    if (!picture) return;
    const layer = layers[state.layer], n = data.side * data.side;
    if (!picture.firstChild)
      picture.append(make("img", { src: data.image, alt: "the image that the model was shown" }), make("canvas", {}));
    const cover = picture.lastChild, on = w.exact && columns(layer).length >= n && layer.image;
    let share = null;
    if (state.row !== null && on) {
      const first = w.s - n;
      share = (k) => w.at(state.row, first + k);
      caption.textContent = "what " + rows(layer)[state.row] + " " + layer.verb;
    } else if (data.rollout) {
      const shares = data.rollout;
      share = (k) => shares[k];
      caption.textContent = "attention rollout: where what the head reads could have come from";
    }
    if (!share) { cover.width = 1; caption.textContent = "the image that the model was shown; point at a row that looks at it"; return; }
    let most = 1e-9;
    for (let k = 0; k < n; k++) most = Math.max(most, share(k));
    cover.width = cover.height = data.side;
    const context = cover.getContext("2d"), image = context.createImageData(data.side, data.side);
    const paper = style("--att-paper").match(/[0-9a-f]{2}/gi).map((x) => parseInt(x, 16)); // it fades where nothing looks
    for (let k = 0; k < n; k++) image.data.set([...paper, 225 * (1 - share(k) / most)], 4 * k);
    context.putImageData(image, 0, 0);
  }

  function tell(w) {
    const layer = layers[state.layer];
    told.replaceChildren();
    if (state.row === null) { told.append("Point at a cell, or use the arrow keys in the picture."); return; }
    const mine = w.exact ? rows(layer) : blocks(rows(layer), w.t), theirs = w.exact ? columns(layer) : blocks(columns(layer), w.s);
    if (state.column !== null) {
      told.append(make("bdi", { text: mine[state.row] }), " (" + (state.row + 1) + ") " + layer.verb + " ", make("bdi", { text: theirs[state.column] }),
        " (" + (state.column + 1) + "): " + percent(w.at(state.row, state.column)));
      told.append(make("br"));
    }
    told.append("most: ");
    strongest(w, state.row, 3).slice(0, 3).forEach((j, k) => told.append(k ? ", " : "", make("bdi", { text: theirs[j] }), " " + percent(w.at(state.row, j))));
  }

  // -- choosing ---------------------------------------------------------------------------

  function choose(layer, head) {
    state.layer = layer; state.head = head; state.row = state.column = null;
    if (more && full[key()] === undefined) {
      const asked = key();
      Promise.resolve(more(layers[layer], head)).then((text) => {
        if (text) { full[asked] = text; if (asked === key()) draw(); }
      }, () => {});
    }
    draw();
  }

  function draw() {
    const layer = layers[state.layer], w = weights();
    layerPicker.value = state.layer;
    headPicker.replaceChildren(...Array.from({ length: layer.heads }, (_, h) => make("option", { value: h, text: h })));
    headPicker.value = state.head;
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.view === state.view)));
    cells.forEach((own, i) => own.forEach((button, h) => button.setAttribute("aria-pressed", String(i === state.layer && h === state.head))));
    note.textContent = layer.name + ", head " + state.head + ": " + layer.entropy[state.head].toFixed(2) + " bits, "
      + rows(layer).length + " x " + columns(layer).length
      + (layer.note ? "; " + layer.note : "")
      + (w.exact ? "" : "; put together to " + w.t + " x " + w.s + ", shares of neighbours summed");
    stage.replaceChildren(state.view === "heat" ? canvas : lines);
    again();
  }

  function again() {
    const w = weights();
    if (state.view === "heat") heat(w); else drawLines(w);
    tell(w); over(w);
  }

  function point(event) {
    const w = weights(), box = event.target.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (place.lines) {
      const row = Math.floor((y - 4) / place.step);
      set(row >= 0 && row < w.t && x < 245 ? row : null, null);
    } else {
      const row = Math.floor((y - place.above) / place.side), column = Math.floor((x - place.left) / place.side);
      const inside = row >= 0 && row < w.t && column < w.s;
      set(inside ? row : null, inside && column >= 0 ? column : null);
    }
  }

  function set(row, column) {
    if (row === state.row && column === state.column) return;
    state.row = row; state.column = column;
    again();
  }

  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  for (const target of [canvas, lines]) {
    target.addEventListener("pointermove", point);
    target.addEventListener("pointerdown", point);
    target.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { set(null, null); return; }
      if (!steps[event.key]) return;
      event.preventDefault();
      const w = weights(), [down, right] = steps[event.key];
      const within = (x, n) => Math.min(n - 1, Math.max(0, x));
      set(state.row === null ? 0 : within(state.row + down, w.t), within((state.column || 0) + right, w.s));
    });
  }

  function thumbs() {
    layers.forEach((layer, i) => cells[i].forEach((button, h) => {
      const w = small(layer, h);
      paint(button.firstChild, w.at, w.t, w.s);
    }));
  }

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { held = {}; thumbs(); again(); });
  thumbs();
  choose(state.layer, state.head);
  return { choose, point: set, state };
}
