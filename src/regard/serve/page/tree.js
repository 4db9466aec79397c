// What a search did: the ways it went and those it gave up, as a tree, over a stepper that goes through it.

import { ask, bare, choice, counted, fixed, h, lately, percent, s, short } from "./dom.js";
import { stepper } from "./stepper.js";

const ROW = 37;
const GAP = 26; // between two columns
const LETTER = 7.9;
const GHOSTS = 1; // of what is given up, so many of each way are drawn
const LEGEND =
  "Filled: the answer. Tinted: went on. Dashed: not taken; why is under the pointer. Click a token to go to its step.";
const KIND = { taken: "live", ended: "live", cut: "live", stopped: "gone", pruned: "gone" };

/** A trace as a tree: nodes by their column, each with its parent and the step and way that it leads to. */
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
        const [into] = candidate.into;
        const place = into === undefined || !steps[t + 1] ? [t, way.number] : [t + 1, into];
        const node = { t, place, alive: place[0] > t, parent: live.get(way.number), ...candidate };
        column.push(node);
        for (const other of candidate.into) next.set(other, node);
        if (answer && answer.step === t && answer.way === way.number && answer.id === candidate.id)
          for (let one = node; one; one = one.parent) one.best = true;
      }
    }
    columns.push(column);
    live = next;
  });
  return columns;
}

/** What was looked at to write each token of the answer, where it is known. */
function looked({ steps, finished }) {
  const answer = finished.find((one) => one.answer);
  const found = [];
  for (let t = answer?.step ?? -1, number = answer?.way; t >= 0; t--) {
    const way = steps[t].ways.find((one) => one.number === number);
    found.unshift(way.attention);
    number = way.parent ?? 0;
  }
  return found;
}

/** Gives every node a row: the best way goes straight, and others find the nearest place to their parents. */
function placed(columns) {
  const rank = ({ best, fate }) => (best ? 3 : ({ taken: 2, ended: 1, cut: 1 }[fate] ?? 0));
  let [low, high] = [0, 0];
  for (const column of columns) {
    const taken = new Set();
    for (const node of [...column].sort((a, b) => rank(b) - rank(a) || b.total - a.total)) {
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

/** The tree as a picture, marked as the stepper wants it. */
function picture(columns) {
  const [low, high] = placed(columns);
  const [lines, boxes] = [[], []];
  let x = 4;
  for (const column of columns) {
    const width = 18 + LETTER * Math.min(18, Math.max(...column.map(({ token }) => [...bare(token)].length), 6));
    for (const node of column) {
      const y = (node.row - low) * ROW + 4;
      const kind = node.best ? "best" : KIND[node.fate];
      const share = percent(Math.exp(node.logprob));
      const about = `${node.token}: ${share}\nthe logarithm of all of it: ${fixed(node.total)}\n${node.why}`;
      const [step, way] = node.place;
      const how = { "data-t": node.t, "data-step": step, "data-way": way, "data-node": node.alive ? `${step}-${way}` : null };
      Object.assign(node, { x, y: y + ROW / 2 - 3, width });
      boxes.push(
        s(
          "g",
          { class: `node ${kind}`, "data-tip": about, ...how },
          s("rect", { x, y, width, height: ROW - 6, rx: 5 }),
          s("text", { x: x + 7, y: y + 14 }, short(bare(node.token), 18)),
          s("text", { x: x + 7, y: y + 26, class: "p" }, node.fate === "ended" ? `${share}, end` : share),
        ),
      );
      if (!node.parent) continue;
      const from = node.parent.x + node.parent.width;
      const d = `M${from} ${node.parent.y}C${from + GAP / 2} ${node.parent.y} ${x - GAP / 2} ${node.y} ${x} ${node.y}`;
      lines.push(s("path", { class: `edge ${kind}`, d }));
    }
    x += width + GAP;
  }
  const [width, height] = [x - GAP + 8, (high - low + 1) * ROW + 8];
  const how = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The search as a tree" };
  return s("svg", how, lines, boxes);
}

/** The search of a model over what `given()` says. Returns [element, refresh, told]; told() is what it
 * read and wrote, and what it looked at to write each token. */
export function search(model, title, given, { chosen = () => {}, grown = () => {}, open = true } = {}) {
  let trace = null;
  const problem = h("p", { class: "bad", role: "status" });
  const sentences = h("div", { class: "row" });
  const tree = h("div", { class: "scroll tree", tabindex: "0", role: "group", "aria-label": "The search as a tree" });
  const steps = h("div");
  const legend = h("p", { class: "note" }, LEGEND);
  const box = h("details", { class: "card", open }, h("summary", {}, title), sentences, problem, tree, legend, steps);

  function show() {
    const shown = picture(planted(trace));
    // So that the pointer can go along a tree that is wider than the page.
    shown.addEventListener("click", () => requestAnimationFrame(follow));
    tree.replaceChildren(shown);
    tree.scrollLeft = 0;
    stepper(steps, trace, { alone: false, tree: shown, image: trace.image && `data:image/jpeg;base64,${trace.image}` });
    steps.querySelector("input").addEventListener("input", follow);
    steps.querySelectorAll(".step-bar button").forEach((button) => button.addEventListener("click", follow));
  }

  function follow() {
    const here = tree.querySelector(".here");
    if (here) tree.scrollLeft = here.getBBox().x - tree.clientWidth / 2;
  }

  const refresh = lately(async (signal) => {
    const what = given();
    if (!what || !box.open) return;
    tree.classList.add("stale");
    try {
      trace = await ask("look/trace", { model: model.name, ...what }, signal);
      const options = trace.sentences.slice(0, 12).map((text, i) => [i, short(text, 24)]);
      const count = h("span", { class: "legend" }, counted(trace.sentences.length, "sentence"));
      const several = options.length > 1 ? [count, choice("Sentence", options, trace.sentence, chosen)] : [];
      sentences.replaceChildren(...several);
      grown();
      show();
    } finally {
      tree.classList.remove("stale");
    }
  }, (line) => (problem.textContent = line), 300);
  box.addEventListener("toggle", () => box.open && !trace && refresh.now());
  return [box, refresh, () => trace && { text: trace.text, target: trace.answer.text, looked: looked(trace) }];
}
