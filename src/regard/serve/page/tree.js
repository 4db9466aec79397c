// What a search did, step by step: the ways it went, those it gave up and why, and what it saw at each step.

import { ask, bars, chip, counted, choice, colour, drawn, fixed, h, lately, percent, s, shade, short, slider, tell } from "./dom.js";

const ROW = 30;
const GAP = 26; // between two columns
const LETTER = 7.9;
const GHOSTS = 2; // of what is given up, so many of each way are drawn
const SHOWN = 6; // candidates of each way in the list of a step

/** A trace as a tree: nodes by their column, each with its parent. The best way's nodes are marked. */
export function planted({ steps, best }) {
  const columns = [];
  let live = [null]; // the nodes that the ways of a step stand on
  steps.forEach(({ ways }, t) => {
    const column = [];
    const next = [];
    ways.forEach((way, k) => {
      let ghosts = 0;
      way.candidates.forEach((candidate) => {
        const { fate } = candidate;
        if (fate === "pruned" && ghosts++ >= GHOSTS) return;
        const node = { t, parent: live[k], ...candidate };
        column.push(node);
        if (fate === "taken") next[candidate.to] = node;
      });
    });
    columns.push(column);
    live = next;
  });
  // From the end of the best way back to its beginning.
  const last = columns.flat().find((node) => node.best);
  for (let node = last; node; node = node.parent) node.best = true;
  return columns.filter((column) => column.length);
}

/** Gives every node a row: the best way goes straight, and others find the nearest place to their parents. */
export function placed(columns) {
  let [low, high] = [0, 0];
  for (const column of columns) {
    const taken = new Set();
    const order = [...column].sort((a, b) => Number(b.best ?? 0) - Number(a.best ?? 0) || rank(b) - rank(a) || b.total - a.total);
    for (const node of order) {
      const home = node.parent?.row ?? 0;
      let by = 0;
      while (taken.has(home + by)) by = by > 0 ? -by : 1 - by;
      node.row = home + by;
      taken.add(node.row);
      [low, high] = [Math.min(low, node.row), Math.max(high, node.row)];
    }
  }
  return [low, high];
}

const rank = (node) => ({ taken: 2, ended: 1 })[node.fate] ?? 0;

/** The tree as a picture; `go(t)` hears of the step that is clicked. */
function picture(columns, go) {
  const [low, high] = placed(columns);
  let x = 4;
  const marks = [];
  for (const column of columns) {
    const width = 18 + LETTER * Math.min(18, Math.max(...column.map(({ token }) => [...token].length), 3));
    for (const node of column) {
      const y = (node.row - low) * ROW + 4;
      Object.assign(node, { x, y: y + ROW / 2 - 3, width });
      const kind = `${node.best ? "best" : { taken: "live", ended: "live", pruned: "cut" }[node.fate]}`;
      const about = `${node.token}: ${percent(Math.exp(node.logprob))}, log-probability of the whole ${fixed(node.total)}\n${node.why}`;
      const box = s("g", { class: `node ${kind}`, "data-t": String(node.t), "data-tip": about, onclick: () => go(node.t) });
      box.append(
        s("rect", { x, y, width, height: ROW - 6, rx: 5 }),
        s("text", { x: x + 7, y: y + 11 }, short(node.token, 18)),
        s("text", { x: x + 7, y: y + 21, class: "p" }, percent(Math.exp(node.logprob)) + (node.fate === "ended" ? " · end" : "")),
      );
      marks.push(box);
      if (node.parent) {
        const from = node.parent.x + node.parent.width;
        const d = `M${from} ${node.parent.y}C${from + GAP / 2} ${node.parent.y} ${x - GAP / 2} ${node.y} ${x} ${node.y}`;
        marks.unshift(s("path", { class: `edge ${kind}`, d, "data-t": String(node.t) }));
      }
    }
    x += width + GAP;
  }
  const height = (high - low + 1) * ROW + 8;
  return s("svg", { width: x - GAP + 8, height, viewBox: `0 0 ${x - GAP + 8} ${height}`, role: "img", "aria-label": "The search as a tree" }, ...marks);
}

/** The search of a model over what `given()` says. Returns [element, refresh, told]; told() is what was found. */
export function search(model, title, given, { chosen = () => {}, grown = () => {}, open = true } = {}) {
  let trace = null;
  let seen = null; // what was looked at to write each token
  let step = 0;
  let timer = null;
  const problem = h("p", { class: "bad", role: "status" });
  const sentences = h("div", { class: "row" });
  const scroll = h("div", { class: "scroll tree", tabindex: "0", "aria-label": "The search as a tree; arrow keys go through its steps" });
  const walk = h("div", { class: "row" });
  const detail = h("div");
  const box = h("details", { class: "card", open }, h("summary", {}, title), sentences, problem, scroll, walk, detail);

  function show() {
    const columns = planted(trace);
    scroll.replaceChildren(picture(columns, to));
    step = Math.min(step, columns.length - 1);
    stop();
    const control = slider("Step", { min: 1, max: columns.length, step: 1, value: columns.length, say: (n) => `${n} of ${columns.length}` }, (n) => (stop(), go(n - 1)));
    const input = control.querySelector("input");
    const play = h("button", { type: "button", class: "button", onclick: () => (timer ? stop() : start()) }, "Play");
    walk.replaceChildren(play, control);
    walk.hidden = columns.length < 2;

    function start() {
      if (step >= columns.length - 1) to(0);
      play.textContent = "Stop";
      timer = setInterval(() => (box.isConnected && step < columns.length - 1 ? to(step + 1) : stop()), 650);
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      if (play) play.textContent = "Play";
    }
    function to(t) {
      input.value = String(t + 1);
      input.dispatchEvent(new Event("input"));
      if (t !== step) go(t);
    }
    scroll.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) event.preventDefault(), stop(), to(Math.max(0, Math.min(columns.length - 1, step + by)));
    };
    go(columns.length - 1, false);
  }

  function go(t, follow = true) {
    step = t;
    const marks = [...scroll.querySelectorAll("[data-t]")];
    const n = trace.steps.length - 1;
    for (const mark of marks) {
      const at = Number(mark.dataset.t);
      mark.classList.toggle("later", at > t);
      mark.classList.toggle("now", at === t && t < n && mark.classList.contains("node"));
    }
    const now = scroll.querySelector(`.node.best[data-t="${t}"]`) ?? scroll.querySelector(`.node[data-t="${t}"]`);
    if (now && follow) scroll.scrollTo({ left: now.getBBox().x - scroll.clientWidth / 2, behavior: "instant" });
    detail.replaceChildren(stepView(t));
  }

  /** One step: what is written so far, what was looked at, and what came next in each of the ways. */
  function stepView(t) {
    const { ways } = trace.steps[t];
    const written = trace.best.tokens;
    const chips = written.map((token, i) => chip(token, { class: `write${i > t ? " masked" : i === t ? " on" : ""}`, tip: i > t ? "not yet written: out of sight" : token }));
    const parts = [h("h3", {}, "Written so far; what comes later is masked"), h("div", { class: "strip" }, chips)];
    const row = seen?.weights[t];
    if (row) {
      const shown = seen.columns.map((token, j) => {
        const one = chip(token, { tip: `${token}: ${percent(row[j])}` });
        one.style.background = `color-mix(in srgb, ${colour("read")} ${Math.round(75 * shade(row[j]))}%, ${colour("card")})`;
        return one;
      });
      parts.push(h("h3", {}, `Where it looked to write ${written[t] ?? "the end"} (layer ${seen.layer}, head ${seen.head + 1})`), h("div", { class: "strip seen" }, shown));
    }
    const each = ways.map((way) =>
      h(
        "div",
        {},
        h("h3", { dir: "auto" }, way.tokens.length ? `After ${short(way.text, 44)}` : "At the beginning"),
        bars(
          way.candidates.slice(0, SHOWN).map((one) => ({ name: one.token, share: Math.exp(one.logprob), out: one.fate === "pruned", tip: `${one.why}\nlog-probability of the whole ${fixed(one.total)}` })),
          "Candidates",
        ),
      ),
    );
    return h("div", {}, parts, h("div", { class: "stepper" }, each));
  }

  const refresh = lately(async (signal) => {
    const what = given();
    if (!what || !box.open) return;
    scroll.classList.add("stale");
    try {
      trace = await ask("look/trace", { model: model.name, ...what }, signal);
      const several = trace.sentences?.length > 1;
      sentences.replaceChildren(
        ...(several ? [h("span", { class: "legend" }, counted(trace.sentences.length, "sentence")), choice("Sentence", trace.sentences.slice(0, 12).map((text, i) => [i, short(text, 24)]), trace.sentence, chosen)] : []),
      );
      grown(trace);
      seen = null;
      show();
      if (model.shape === "encoder-decoder" && model.attention.length) {
        seen = await ask("look/attention", { model: model.name, text: trace.source, target: trace.best.text }, signal);
        if (seen.block[0] > 1) seen = null;
        go(step, false);
      }
    } finally {
      scroll.classList.remove("stale");
    }
  }, (line) => (problem.textContent = line), 300);
  box.addEventListener("toggle", () => box.open && !trace && refresh.now());
  return [box, refresh, () => trace && { text: trace.source, target: trace.best.text }];
}
