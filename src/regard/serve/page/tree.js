// What a search did, step by step: the ways it went, those it gave up and why, and what it saw at each step.

import { ask, bare, bars, chip, choice, colour, counted, fixed, h, lately, percent, s, shade, short, slider, tail } from "./dom.js";

const ROW = 37;
const GAP = 26; // between two columns
const LETTER = 7.9;
const GHOSTS = 1; // of what is given up, so many of each way are drawn
const SHOWN = 6; // candidates of each way in the list of a step

/** A trace as a tree: nodes by their column, each with its parent; those of the best answer are marked. */
export function planted({ steps, finished }) {
  const answer = finished.find((one) => one.answer);
  const columns = [];
  let live = new Map([[0, null]]); // what the ways of a step stand on
  steps.forEach(({ ways }, t) => {
    const column = [];
    const next = new Map();
    for (const way of ways) {
      let ghosts = 0;
      for (const candidate of way.candidates) {
        if (candidate.fate === "pruned" && ghosts++ >= GHOSTS) continue;
        const node = { t, parent: live.get(way.number), ...candidate };
        column.push(node);
        for (const into of candidate.into) next.set(into, node);
        if (answer && answer.step === t && answer.way === way.number && answer.id === candidate.id)
          for (let one = node; one; one = one.parent) one.best = true;
      }
    }
    columns.push(column);
    live = next;
  });
  return columns;
}

/** The best answer's ways, step by step: [way] for each of its tokens. */
function trail({ steps, finished }) {
  const answer = finished.find((one) => one.answer);
  if (!answer) return [];
  const found = [];
  for (let t = answer.step, number = answer.way; t >= 0; t--) {
    const way = steps[t].ways.find((one) => one.number === number);
    found.unshift(way);
    number = way.parent ?? 0;
  }
  return found;
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

const rank = (node) => ({ taken: 2, ended: 1, cut: 1 })[node.fate] ?? 0;
const KIND = { taken: "live", ended: "live", cut: "live", stopped: "cut", pruned: "cut" };

/** The tree as a picture; `go(t)` hears of the step that is clicked. */
function picture(columns, go) {
  const [low, high] = placed(columns);
  let x = 4;
  const marks = [];
  for (const column of columns) {
    const width = 18 + LETTER * Math.min(18, Math.max(...column.map(({ token }) => [...bare(token)].length), 5));
    for (const node of column) {
      const y = (node.row - low) * ROW + 4;
      Object.assign(node, { x, y: y + ROW / 2 - 3, width });
      const kind = node.best ? "best" : KIND[node.fate];
      const about = `${node.token}: ${percent(Math.exp(node.logprob))}, log-probability of the whole ${fixed(node.total)}\n${node.why}`;
      const box = s("g", { class: `node ${kind}`, "data-t": String(node.t), "data-tip": about, onclick: () => go(node.t) });
      box.append(
        s("rect", { x, y, width, height: ROW - 6, rx: 5 }),
        s("text", { x: x + 7, y: y + 14 }, short(bare(node.token), 18)),
        s("text", { x: x + 7, y: y + 26, class: "p" }, percent(Math.exp(node.logprob)) + (node.fate === "ended" ? " · end" : "")),
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

/** What each way had written before each step. */
function told({ steps }) {
  let before = new Map([[0, ""]]);
  return steps.map(({ ways }) => (before = new Map(ways.map((way) => [way.number, before.get(way.parent ?? 0) + way.added]))));
}

/** The search of a model over what `given()` says. Returns [element, refresh, told]; told() is what was found. */
export function search(model, title, given, { chosen = () => {}, grown = () => {}, open = true } = {}) {
  let trace = null;
  let texts = []; // of each way before each step
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
    clearInterval(timer);
    timer = null;
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
      play.textContent = "Play";
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
    const best = trail(trace);
    const on = best[t] ?? ways[0];
    const written = best.slice(1).map((way) => way.token);
    const last = trace.finished.find((one) => one.answer);
    const end = last && trace.steps[last.step].ways.find((way) => way.number === last.way)?.candidates.find(({ id }) => id === last.id);
    if (end) written.push(end.token);
    const chips = written.map((token, i) => chip(token, { class: `write${i > t ? " masked" : i === t ? " on" : ""}`, tip: i > t ? "not yet written: masked" : i === t ? "written in this step" : "seen in this step" }));
    const hidden = t < written.length - 1 ? "; what is hatched comes later, and is masked" : "";
    const parts = [h("h3", {}, `Written so far${hidden}`), h("div", { class: "strip" }, chips)];
    if (on.attention && !trace.side) {
      const shown = trace.source.map((token, j) => {
        const one = chip(token, { tip: `${token}: ${percent(on.attention[j])}` });
        one.style.background = `color-mix(in srgb, ${colour("read")} ${Math.round(75 * shade(on.attention[j]))}%, ${colour("card")})`;
        return one;
      });
      parts.push(h("h3", {}, `Where it looked to write ${written[t] ?? "the next"} (layer ${trace.layer}, all heads)`), h("div", { class: "strip seen" }, shown));
    }
    const each = ways.map((way) =>
      h(
        "div",
        {},
        h("h3", { dir: "auto" }, texts[t].get(way.number) ? `After “${tail(texts[t].get(way.number), 40)}”` : "At the beginning"),
        bars(
          way.candidates.slice(0, SHOWN).map((one) => ({ name: one.token, share: Math.exp(one.logprob), out: KIND[one.fate] === "cut", tip: `${one.why}\nlog-probability of the whole ${fixed(one.total)}` })),
          "Candidates",
        ),
      ),
    );
    return h("div", {}, parts, h("div", { class: "stepper" }, each), t === trace.steps.length - 1 && trace.over ? h("p", { class: "note" }, `The search ended: ${trace.over}.`) : null);
  }

  const refresh = lately(async (signal) => {
    const what = given();
    if (!what || !box.open) return;
    scroll.classList.add("stale");
    try {
      trace = await ask("look/trace", { model: model.name, ...what }, signal);
      const several = trace.sentences.length > 1;
      sentences.replaceChildren(
        ...(several ? [h("span", { class: "legend" }, counted(trace.sentences.length, "sentence")), choice("Sentence", trace.sentences.slice(0, 12).map((text, i) => [i, short(text, 24)]), trace.sentence, chosen)] : []),
      );
      texts = told(trace);
      grown();
      show();
    } finally {
      scroll.classList.remove("stale");
    }
  }, (line) => (problem.textContent = line), 300);
  box.addEventListener("toggle", () => box.open && !trace && refresh.now());
  return [box, refresh, () => trace && { text: trace.text, target: trace.answer.text }];
}
