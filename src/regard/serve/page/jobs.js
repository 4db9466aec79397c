// A view for each job: what is typed on one side, what the model makes of it on the other, and what happened below.

import { attention, matrix } from "./attention.js";
import { ask, bars, button, choice, counted, fixed, h, lately, percent, shade, short, slider, stream, strip } from "./dom.js";
import { imageView } from "./images.js";
import { search } from "./tree.js";

const EXAMPLES = {
  translate: "The agreement on the European Economic Area was signed in August 1992.",
  generate: "Once upon a time",
  fill: "The dog [MASK] through the [MASK] snow.",
  classify: "The animal didn't cross the street because it was too tired.",
  tag: "Ada Lovelace lived in London with Charles Babbage",
  compare: [
    "A dog runs through the snow.",
    "A puppy plays in the snow.",
    "The parliament adopted the report.",
    "The vote took place at noon.",
  ].join("\n"),
  draw: "an ankle boot",
};

/** What a model can be asked: [view, name] pairs. */
export function modes(model) {
  const jobs = {
    translate: [["translate", "Translate"]],
    generate: model.chat ? [["write", "Write"], ["chat", "Chat"]] : [["write", "Write"]],
    fill: [["fill", "Fill in"]],
    classify: [[model.images ? "image" : "classify", "Classify"]],
    tag: [["tag", "Tag"]],
    caption: [["image", "Caption"]],
    match: [["image", "Match"]],
    draw: [["draw", "Draw"]],
  }[model.task] ?? [];
  const compares = model.text && !model.images && !["draw", "paint"].includes(model.task);
  return [...jobs, ...(compares || model.task === "match" ? [["compare", "Compare lines"]] : [])];
}

export const views = {
  translate, write, chat, fill: filled, classify: classified, tag: tagged, compare: compared, image: imageView, draw: drawing,
};

// -- what all have --------------------------------------------------------------------------

/** A text to type, its tokens below, and what is wrong with it; `changed(text, signal)` is called a while after. */
function asking(model, { label, text, hint = "", lines = false, changed }) {
  const key = `text ${model.name} ${label}`;
  const area = h("textarea", { rows: "2", dir: "auto", spellcheck: false, placeholder: hint, "aria-label": label });
  area.classList.toggle("lines", lines);
  area.value = sessionStorage.getItem(key) ?? text;
  const problem = h("p", { class: "bad", role: "status" });
  const tokens = h("div");
  let shown = null;
  const about = h("div", { class: "count" });
  const report = (line) => (problem.textContent = line);
  const count = lately(async (signal) => {
    const found = await ask("look/tokens", { model: model.name, text: area.value }, signal);
    about.textContent = counted(found.tokens.length, "token");
    shown = strip({ ...found, label: "Tokens of the text" });
    tokens.replaceChildren(shown);
  }, report, 60);
  const work = lately((signal) => changed(area.value, signal), report, 300);
  const change = () => (sessionStorage.setItem(key, area.value), count(), work());
  area.addEventListener("input", change);
  const box = h("section", { class: "card" }, h("h3", {}, label), area, about, tokens, problem);
  const set = (to) => ((area.value = to), change());
  const start = () => (count.now(), work.now());
  return { box, area, set, start, again: work, text: () => area.value, chips: () => shown?.shown ?? [] };
}

/** Where an answer is shown; what is there is pale while a new one is on its way. */
async function renewed(element, make) {
  element.classList.add("stale");
  try {
    element.replaceChildren(...[await make()].flat().filter((part) => part !== null));
  } finally {
    element.classList.remove("stale");
  }
}

const panes = (...boxes) => h("div", { class: "panes" }, boxes);

// -- translate ------------------------------------------------------------------------------

function translate(model) {
  let beam = 4;
  let sentence = 0;
  let whole = null;
  const said = h("p", { class: "said", dir: "auto" });
  const tokens = h("div", { class: "written" });
  const about = h("div", { class: "count" });
  const others = h("div");
  const out = h("section", { class: "card", "aria-live": "polite" }, h("h3", {}, "Translation"), said, about, tokens, others);
  const [tree, grow, told] = search(model, "How it chose", () => {
    const text = input.text();
    return text.trim() && { text, sentence, beam };
  }, {
    chosen: (to) => ((sentence = to), grow.now()),
    grown: () => see(),
  });
  const [inside, see] = attention(model, () => {
    const { text, target } = (tree.open ? told() : whole) ?? {};
    return text && { text, target };
  });

  /** Shows on the tokens that were read what one that was written looked at. */
  function light(i) {
    const read = input.chips();
    const shares = i < 0 ? null : told()?.looked[i];
    const known = shares?.length === read.length; // not of one sentence of several
    read.forEach((token, j) => {
      token.style.background = known ? `color-mix(in srgb, var(--read) ${Math.round(60 * shade(shares[j]))}%, var(--card))` : "";
    });
  }

  const input = asking(model, {
    label: "Text", text: EXAMPLES.translate, hint: "Type a sentence",
    changed: async (text, signal) => {
      if (!text.trim()) return out.querySelectorAll("p, .count, div").forEach((part) => part.replaceChildren());
      sentence = 0;
      grow();
      await renewed(others, async () => {
        const { answers: [best] } = await ask("translate", { model: model.name, texts: [text], beam, n_best: beam }, signal);
        said.textContent = best.text;
        whole = { text, target: best.text };
        if (!tree.open) see();
        about.textContent = `${counted(best.tokens.length, "token")}, probability ${percent(Math.exp(best.logprob))}`;
        tokens.replaceChildren(strip({ tokens: best.tokens, label: "Tokens of the translation", picked: light }));
        return best.others?.length ? [h("h3", {}, "Other ways"), ways(best.others)] : [];
      });
    },
  });
  const width = slider("Beam", { min: 1, max: 8, step: 1, value: beam }, (to) => ((beam = to), input.again()));
  input.box.append(h("div", { class: "row" }, width));
  return [[panes(input.box, out), tree, inside], input.start];
}

function ways(others) {
  const rows = others.map(({ text, score, logprob }) => {
    const share = h("span", { class: "share", tip: `ranked by ${fixed(score)}` }, percent(Math.exp(logprob)));
    return h("li", {}, h("bdi", {}, text), share);
  });
  return h("ol", { class: "others" }, rows);
}

// -- generate -------------------------------------------------------------------------------

export const TEMPERATURES = Array.from({ length: 39 }, (_, i) => (i + 2) / 20);
const SHOWN = 40;

/** The share of each token as it is drawn: temperature, then the best k, then the fewest that come to p together. */
export function shares({ logits, rest }, temperature, topK, topP) {
  const at = TEMPERATURES.findIndex((t) => Math.abs(t - temperature) < 1e-9);
  const top = logits[0] / temperature;
  const powers = logits.map((logit) => Math.exp(logit / temperature - top));
  const kept = topK ? powers.map((power, i) => (logits[i] >= logits[topK - 1] ? power : 0)) : powers;
  const others = topK || rest[at] === null ? 0 : Math.exp(rest[at] - top);
  const sum = others + kept.reduce((a, b) => a + b, 0);
  let before = 0;
  const nucleus = kept.map((power) => {
    const stays = before < topP ? power / sum : 0;
    before += power / sum;
    return stays;
  });
  const beyond = before < topP ? others / sum : 0; // some of those that were not sent may be drawn too
  const total = beyond + nucleus.reduce((a, b) => a + b, 0);
  return { shares: nucleus.map((share) => share / total), beyond: beyond / total };
}

function write(model) {
  const how = { temperature: 0.8, top_k: 0, top_p: 1 };
  let next = null;
  let control = null;
  const list = h("div");
  const note = h("p", { class: "note" });
  const said = h("p", { class: "said", dir: "auto", "aria-live": "polite", hidden: true });
  const problem = h("p", { class: "bad", role: "status" });

  function show() {
    if (!next) return;
    const { shares: found, beyond } = shares(next, how.temperature, how.top_k, how.top_p);
    const most = found[0] || 1;
    list.replaceChildren(
      bars(
        next.tokens.slice(0, SHOWN).map((token, i) => ({
          name: token, share: found[i], width: found[i] / most, out: found[i] === 0,
          tip: `id ${next.ids[i]}, logit ${fixed(next.logits[i])}`,
          go: next.texts[i] === null ? undefined : () => input.set(input.text() + next.texts[i]),
        })),
        "Next token",
      ),
    );
    const n = found.filter((share) => share > 0).length;
    const others = (next.vocabulary - next.ids.length).toLocaleString("en");
    const rest = beyond > 0 ? `, and ${others} more with ${percent(beyond)} together` : "";
    const cut = next.dropped ? ` The first ${next.dropped} tokens do not fit and are left out.` : "";
    note.textContent = `${counted(n, "token")} can be drawn${rest}.${cut}`;
  }

  const input = asking(model, {
    label: "Text", text: EXAMPLES.generate, hint: "Begin a text",
    changed: async (text, signal) => {
      see();
      grow();
      next = await ask("look/next", { model: model.name, prompt: text, temperatures: TEMPERATURES }, signal);
      show();
    },
  });
  const [tree, grow] = search(model, "Where it could go", () => ({ text: input.text(), beam: 4, max_length: 12 }));
  const [inside, see] = attention(model, () => (input.text() ? { text: input.text() } : null));

  async function run() {
    control = new AbortController();
    buttons(true);
    const prompt = input.text();
    const fresh = h("span", { class: "new" });
    said.hidden = false;
    said.replaceChildren(prompt, fresh);
    try {
      problem.textContent = "";
      const asked = { model: model.name, prompt, max_tokens: 100, ...drawing(how), seed: Math.floor(Math.random() * 2 ** 31) };
      for await (const { choices: [choice] } of stream("v1/completions", asked, control.signal)) {
        fresh.append(choice?.text ?? "");
        said.scrollTop = said.scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") problem.textContent = error.message;
    }
    buttons(false);
  }
  const take = () => (input.set(said.textContent), (said.hidden = keep.hidden = true));
  const go = button("Write", run, { kind: "main" });
  const stop = button("Stop", () => control.abort(), { hidden: true });
  const keep = button("Keep", take, { hidden: true });
  const buttons = (running) => ((go.hidden = running), (stop.hidden = !running), (keep.hidden = running));
  input.area.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run());
  input.box.append(h("div", { class: "row" }, go, stop, keep, h("span", { class: "note" }, "or Ctrl + Enter")), said, problem);

  const set = (name) => (to) => ((how[name] = to), show());
  const two = (x) => x.toFixed(2);
  const all = (k) => (k ? String(k) : "all");
  const sliders = h(
    "div",
    { class: "row" },
    slider("Temperature", { min: 0.1, max: 2, step: 0.05, value: how.temperature, say: two }, set("temperature")),
    slider("Top k", { min: 0, max: 100, step: 1, value: 0, say: all }, set("top_k")),
    slider("Top p", { min: 0.05, max: 1, step: 0.05, value: 1, say: two }, set("top_p")),
  );
  const out = h("section", { class: "card" }, h("h3", {}, "What may come next"), sliders, list, note);
  return [[panes(input.box, out), inside, tree], input.start];

  function drawing({ temperature, top_k, top_p }) {
    return { temperature, top_p, ...(top_k ? { top_k } : {}) };
  }
}

const REMEMBERED = 15_000; // characters of a talk that are sent with a turn: servers take 20,000 at once

function chat(model) {
  let messages = [];
  const talk = h("div", { class: "talk", "aria-live": "polite" });
  const problem = h("p", { class: "bad", role: "status" });
  const area = h("textarea", { rows: "1", dir: "auto", "aria-label": "Message", placeholder: "Say something" });
  let control = null;

  async function run(event) {
    event?.preventDefault();
    if (!area.value.trim() || control) return;
    problem.textContent = "";
    const turns = messages; // those of another talk, once Anew was pressed
    const said = area.value;
    turns.push({ role: "user", content: said });
    while (turns.length > 1 && turns.reduce((n, turn) => n + turn.content.length, 0) > REMEMBERED) turns.splice(0, 2);
    const asked = h("p", { class: "user", dir: "auto" }, said);
    const answer = h("p", { class: "assistant", dir: "auto" });
    talk.append(asked, answer);
    area.value = "";
    control = new AbortController();
    stop.hidden = false;
    try {
      for await (const { choices: [choice] } of stream("v1/chat/completions", { model: model.name, messages: turns }, control.signal)) {
        answer.append(choice?.delta?.content ?? "");
        talk.scrollTop = talk.scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") problem.textContent = error.message;
    }
    if (answer.textContent || !problem.textContent) {
      turns.push({ role: "assistant", content: answer.textContent });
    } else {
      turns.pop(); // what was refused was not said
      asked.remove();
      answer.remove();
      area.value ||= said;
    }
    control = null;
    stop.hidden = true;
  }
  const stop = button("Stop", () => control?.abort(), { hidden: true });
  const anew = button("Anew", () => (control?.abort(), (messages = []), talk.replaceChildren()));
  area.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && run(event));
  const form = h("form", { class: "say", onsubmit: run }, area, h("button", { class: "button main" }, "Send"), stop, anew);
  return [[h("section", { class: "card" }, talk, problem, form)], () => area.focus()];
}

// -- fill, classify, tag, compare -------------------------------------------------------------

function filled(model) {
  const list = h("div");
  const out = h("section", { class: "card" }, h("h3", {}, "For each blank"), list);
  const [inside, see] = attention(model, () => (input.text().trim() ? { text: input.text() } : null));
  const input = asking(model, {
    label: "Text with [MASK]", text: EXAMPLES.fill, hint: "Put [MASK] where a word is to be found",
    changed: (text, signal) => {
      see();
      return renewed(list, async () => {
        const { answers: [found] } = await ask("fill", { model: model.name, texts: [text], top: 8 }, signal);
        return [
          h("p", { class: "said", dir: "auto" }, found.best),
          ...found.masks.flatMap((candidates, i) => {
            const row = ({ text: name, token: tip, probability: share }) => ({ name, tip, share, go: () => put(i, name) });
            return [h("h3", {}, `Blank ${i + 1}`), bars(candidates.map(row), `Blank ${i + 1}`)];
          }),
        ];
      });
    },
  });
  const insert = () => {
    input.area.setRangeText("[MASK]", input.area.selectionStart, input.area.selectionEnd, "end");
    input.set(input.text());
    input.area.focus();
  };
  input.box.append(h("div", { class: "row" }, button("Insert [MASK]", insert)));

  function put(n, word) {
    const parts = input.text().split("[MASK]");
    input.set(parts.map((part, i) => part + (i === parts.length - 1 ? "" : i === n ? word : "[MASK]")).join(""));
  }
  return [[panes(input.box, out), inside], input.start];
}

/** The labels of a text or an image, the likeliest first. */
export function labels(found) {
  const cut = found.cut ? h("p", { class: "note" }, "The text was too long, and its end was left out.") : null;
  if (found.score !== undefined) return [h("p", { class: "said" }, fixed(found.score, 3)), cut];
  const rows = Object.entries(found.probabilities).map(([name, share]) => ({ name, share })).sort((a, b) => b.share - a.share);
  return [h("p", { class: "said", dir: "auto" }, found.label), bars(rows, "Labels"), cut];
}

function classified(model) {
  const list = h("div");
  const out = h("section", { class: "card", "aria-live": "polite" }, h("h3", {}, "Label"), list);
  const [inside, see] = attention(model, () => (input.text().trim() ? { text: input.text() } : null));
  const input = asking(model, {
    label: "Text", text: EXAMPLES.classify, hint: "Type a text",
    changed: (text, signal) => {
      see();
      return renewed(list, async () => {
        const { answers: [found] } = await ask("classify", { model: model.name, texts: [text] }, signal);
        return labels(found);
      });
    },
  });
  return [[panes(input.box, out), inside], input.start];
}

function tagged(model) {
  const list = h("div");
  const kinds = [...new Set(model.labels.filter((label) => label !== "O").map((label) => label.replace(/^[BIESUL]-/, "")))];
  const out = h("section", { class: "card", "aria-live": "polite" }, h("h3", {}, "Tags"), list);
  const [inside, see] = attention(model, () => (input.text().trim() ? { text: input.text() } : null));
  const input = asking(model, {
    label: "Sentence", text: EXAMPLES.tag, hint: "Type a sentence",
    changed: (text, signal) => {
      see();
      return renewed(list, async () => {
        const { answers: [found] } = await ask("tag", { model: model.name, sentences: [text] }, signal);
        const { words, tags, probabilities } = found;
        const about = words.map((word, i) => `${short(word, 30)}: ${tags[i]} ${percent(probabilities[i])}`);
        const spans = new Map(found.spans.map((span) => [span.begin, span]));
        const parts = [];
        for (let i = 0; i < words.length; ) {
          const { label, end } = spans.get(i) ?? { label: tags[i], end: i + 1 };
          const hue = label === "O" ? "" : `span hue${kinds.indexOf(label.replace(/^[BIESUL]-/, "")) % 6}`;
          const name = label === "O" ? null : h("small", {}, label);
          const tip = about.slice(i, end).join("\n");
          parts.push(h("span", { class: hue, dir: "auto", tip }, words.slice(i, end).join(" "), name));
          i = end;
        }
        const cut = found.cut ? h("p", { class: "note" }, "The sentence was too long, and tagged in parts.") : null;
        return [h("div", { class: "tagged" }, parts), cut];
      });
    },
  });
  return [[panes(input.box, out), inside], input.start];
}

const MOST_COMPARED = 32;

function compared(model) {
  const view = h("div");
  const lines = (text) => text.split("\n").filter((line) => line.trim()).slice(0, MOST_COMPARED);
  const alone = ["match", "embed"].includes(model.task); // other models have a view of one text
  const first = () => alone && input.text().trim() && { text: lines(input.text())[0] };
  const [inside, see] = attention(model, first, "What it looks at in the first line");
  inside.hidden ||= !alone;
  const about = h("p", { class: "note" }, "The cosine of each two lines’ vectors; the least alike are pale.");
  const out = h("section", { class: "card" }, h("h3", {}, "How alike they are"), about, view);
  const input = asking(model, {
    label: "Lines", text: EXAMPLES.compare, hint: "A text a line", lines: true,
    changed: (text, signal) =>
      renewed(view, async () => {
        const texts = lines(text);
        see();
        if (!texts.length) return [];
        const { vectors } = await ask("embed", { model: model.name, texts }, signal);
        const weights = vectors.map((a) => vectors.map((b) => a.reduce((sum, x, i) => sum + x * b[i], 0)));
        const say = (i, j) => `${short(texts[i], 40)} · ${short(texts[j], 40)}: ${fixed(weights[i][j], 3)}`;
        const rows = texts.map((line, i) => `${i + 1} ${line}`);
        const columns = texts.map((_, i) => String(i + 1));
        const how = { label: "Similarity of the lines", from: Math.min(...weights.flat()), largest: 46, numbers: true };
        return matrix({ rows, columns, weights, say, ...how });
      }),
  });
  return [[panes(input.box, out), inside], input.start];
}

// -- draw -------------------------------------------------------------------------------------

function drawing(model) {
  const grid = h("div", { class: "drawn", "aria-live": "polite" });
  let n = 8;
  let seed = 0;
  const out = h("section", { class: "card" }, h("h3", {}, "Drawn"), grid);
  const input = asking(model, {
    label: "What is to be drawn", text: EXAMPLES.draw,
    changed: (text, signal) =>
      renewed(grid, async () => {
        if (!text.trim()) return [];
        const { answers: [images] } = await ask("draw", { model: model.name, texts: [text], n, seed }, signal);
        return images.map(({ image, score }, i) => {
          const shown = h("img", { src: `data:image/png;base64,${image}`, alt: `${text}, drawing ${i + 1}` });
          return h("figure", {}, shown, h("figcaption", { tip: "the logarithm of its probability" }, fixed(score, 1)));
        });
      }),
  });
  const again = button("Draw others", () => (seed++, input.again.now()), { kind: "main" });
  const counts = [1, 4, 8, 16].map((k) => [k, String(k)]);
  const many = choice("How many", counts, n, (to) => ((n = to), input.again.now()));
  input.box.append(h("div", { class: "row" }, again, many));
  return [[panes(input.box, out)], input.start];
}
