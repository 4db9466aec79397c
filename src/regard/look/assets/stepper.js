// Through a search step by step: what was written before, what of it may be seen, what was looked at of the source, what
// could come next, and what was taken. Works on the plain values of regard.look.trace; text only ever becomes text here.

const MASKED = 40; // positions of the mask that are drawn
const GIVEN = 60; // tokens of a prompt that are shown
const TAIL = 80; // letters of what was written before, in a line

function h(tag, props = {}, ...children) {
  const element = tag === "svg" || props.svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "svg" || value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const number = (value) => value.toFixed(2).replace("-", "−");
const shade = (share) => Math.pow(Math.max(0, Math.min(1, share)), 0.6).toFixed(3);
const nameOf = (token) => token || "␣";
const tail = (text) => ([...text].length > TAIL ? `…${[...text].slice(-TAIL).join("")}` : text);

/** The tree as an element, from the text of Trace.svg(); append it where it is to be seen. */
export function tree(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return document.importNode(parsed, true);
}

/** Fills an element with a stepper over a trace. `image` is the address of the image that was captioned; `tree` the
 * tree as an element, in which the step is marked and can be chosen. Where it is `alone` on its page, the arrow keys are
 * its own wherever the focus is. Returns `go(step, way)`. */
export function stepper(root, trace, { image = null, tree: picture = null, alone = true } = {}) {
  const { steps, prompt, source } = trace;
  const wayOf = (step, way) => steps[step].ways.find((one) => one.number === way);
  const path = (step, way) => {
    const found = [];
    for (let t = step, one = wayOf(step, way); t >= 0; t--, one = t >= 0 ? wayOf(t, one.parent ?? 0) : one) found.unshift(one);
    return found;
  };
  const textOf = (step, way) => path(step, way).map((one) => one.added).join("");
  const best = trace.finished[0];
  const main = best ? path(best.step, best.way).map((one) => one.number) : [];
  let step = 0;
  let way = 0;

  const back = h("button", { type: "button", "aria-label": "Previous step", onclick: () => move(-1) }, "←");
  const next = h("button", { type: "button", "aria-label": "Next step", onclick: () => move(1) }, "→");
  const slider = h("input", { type: "range", min: "0", max: String(steps.length - 1), value: "0", "aria-label": "Step" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const count = h("output");
  const said = h("p", { class: "step-said", "aria-live": "polite" });
  const ways = h("div", { class: "step-ways", role: "group", "aria-label": "Ways" });
  const panes = h("div", { class: "step-panes" });
  const element = h("div", { class: "step-by-step" }, h("div", { class: "step-bar" }, back, next, slider, count), said, ways, panes);
  root.replaceChildren(element);

  /** Where a way goes on, a step further or back; the best one's where it does not. */
  function follow(to) {
    let from = way;
    for (let t = step; t > to && from !== undefined; t--) from = wayOf(t, from)?.parent ?? undefined;
    for (let t = step; t < to && from !== undefined; t++) {
      if (main[t] === from && main[t + 1] !== undefined) from = main[t + 1];
      else from = wayOf(t, from)?.candidates.find((one) => one.into.length)?.into[0];
    }
    return [from, main[to], steps[to].ways[0].number].find((one) => one !== undefined && wayOf(to, one));
  }

  function move(by) {
    if (steps[step + by]) go(step + by);
  }

  function go(to, of) {
    const chosen = of === undefined ? follow(to) : of;
    step = to;
    way = chosen;
    show();
  }

  function show() {
    const one = wayOf(step, way);
    const before = path(step, way).slice(1);
    const [taken, ...more] = one.candidates.filter((c) => c.fate === "taken" || c.fate === "ended" || c.fate === "cut");
    const here = main[step] === way && main[step + 1] !== undefined ? one.candidates.find((c) => c.into.includes(main[step + 1])) : null;
    const last = best && best.step === step && best.way === way ? one.candidates.find((c) => c.id === best.id) : null;
    const chosen = here ?? last ?? taken;
    slider.value = String(step);
    slider.setAttribute("aria-valuetext", `step ${step + 1}`);
    count.textContent = `step ${step + 1} of ${steps.length}`;
    back.disabled = step === 0;
    next.disabled = step === steps.length - 1;
    const text = textOf(step, way);
    said.replaceChildren(
      ...(text ? ["After ", h("bdi", {}, tail(text)), " "] : ["At first "]),
      ...(chosen ? ["comes ", h("b", {}, h("bdi", {}, nameOf(chosen.token))), `: ${chosen.why}.`] : ["nothing comes: this way ends here."]),
      ...(step === steps.length - 1 ? [` The search is over: ${trace.over}.`] : []),
    );
    ways.hidden = steps.every((at) => at.ways.length === 1);
    ways.replaceChildren(
      ...steps[step].ways.map((other) =>
        h(
          "button",
          { type: "button", "aria-pressed": String(other.number === way), onclick: () => go(step, other.number) },
          h("small", {}, `${number(other.total)} `),
          h("bdi", {}, tail(textOf(step, other.number)) || "…"),
        ),
      ),
    );
    panes.replaceChildren(
      h("section", {}, h("h3", {}, "What was written before"), written(before, chosen), mask(before.length)),
      one.attention ? h("section", {}, h("h3", {}, "What it looked at"), trace.side ? overImage(one.attention) : overText(one.attention)) : "",
      h("section", {}, h("h3", {}, more.length ? "The best candidates, and those taken" : "The best candidates, and the one taken"), candidates(one)),
    );
    for (const row of panes.querySelectorAll(".step-row")) {
      const to = row.querySelector(".next, .most"); // what is new, or looked at most, is to be seen
      if (to) row.scrollTop = to.offsetTop - row.offsetTop - row.clientHeight / 2;
    }
    mark();
  }

  function written(before, chosen) {
    const [from, upto] = steps[step].sees ?? [0, Infinity];
    const names = [...prompt, ...before.map((one) => one.token)];
    const left = Math.max(0, prompt.length - GIVEN);
    const chips = names.slice(left).map((token, i) => {
      const at = i + left;
      const seen = at >= from && at < upto;
      const kind = `step-tok${at < prompt.length ? " given" : ""}${seen ? "" : " hidden"}`;
      return h("bdi", { class: kind, title: seen ? "may be seen" : "outside the window: not seen" }, nameOf(token));
    });
    if (left) chips.unshift(h("span", { class: "step-note" }, `${left} more, then`));
    chips.push(h("bdi", { class: `step-tok next${chosen ? "" : " open"}` }, chosen ? nameOf(chosen.token) : "–"));
    return h("div", { class: "step-row" }, chips);
  }

  /** The lower left of the mask: the last rows, and the one of this step. */
  function mask(n) {
    if (!steps[step].sees) return h("p", { class: "step-note" }, "No mask: this decoder is recurrent, and its state carries what came before.");
    const all = prompt.length + steps.length - 1;
    const now = prompt.length - 1 + n;
    const first = Math.max(0, Math.min(all - MASKED, now - MASKED + 5));
    const size = Math.min(MASKED, all - first);
    const cell = size > 20 ? 6 : 10;
    const parts = { may: "", not: "", now: "" };
    for (let r = 0; r < size; r++) {
      const [from, upto] = steps[Math.max(0, first + r - prompt.length + 1)].sees;
      const before = first + r - prompt.length + 1 < 0; // within the prompt
      for (let c = 0; c < size; c++) {
        const at = first + c;
        const may = before ? at <= first + r : at >= from && at < upto;
        const kind = may ? (first + r === now ? "now" : "may") : "not";
        parts[kind] += `M${c * cell} ${r * cell}h${cell - 1}v${cell - 1}h${1 - cell}z`;
      }
    }
    const side = size * cell;
    const [from, upto] = steps[step].sees;
    const told = `It may see ${from === 0 ? "all" : `the last ${upto - from}`} of the ${now + 1} before, and nothing after.`;
    return h(
      "div",
      {},
      h("h3", { class: "below" }, "The mask"),
      h(
        "svg",
        { class: "step-mask", viewBox: `-1 -1 ${side + 2} ${side + 2}`, width: side + 2, height: side + 2, role: "img", "aria-label": told },
        Object.entries(parts).map(([kind, d]) => h("path", { svg: true, class: kind, d })),
        h("rect", { svg: true, class: "row", x: -0.5, y: (now - first) * cell - 0.5, width: side, height: cell }),
      ),
      h("p", { class: "step-note" }, told),
    );
  }

  function overText(attention) {
    const most = Math.max(...attention);
    return h(
      "div",
      { class: "step-row" },
      source.map((token, i) => {
        const share = attention[i];
        const kind = `step-tok read${share === most ? " most" : ""}${share > 0.6 ? " dark" : ""}`;
        return h("bdi", { class: kind, title: percent(share), "--share": shade(share) }, nameOf(token));
      }),
    );
  }

  /** The cells of the image; over a photo, what was not looked at fades. */
  function overImage(attention) {
    const cells = attention.slice(-(trace.side ** 2));
    const most = Math.max(...cells, 1e-9);
    const fill = (share) => (image ? (0.88 * (1 - share / most)).toFixed(3) : shade(share / most));
    const grid = cells.map((share, i) => h("i", { title: `${source.at(i - cells.length)}: ${percent(share)}`, "--share": fill(share) }));
    const how = { class: `step-image${image ? " photo" : ""}`, "--side": String(trace.side) };
    return h("div", how, image ? h("img", { src: image, alt: "" }) : null, grid);
  }

  function candidates(one) {
    return h(
      "ol",
      { class: "step-bars" },
      one.candidates.map((c) => {
        const share = c.share ?? Math.exp(c.logprob);
        return h(
          "li",
          { class: c.fate, title: `probability ${percent(Math.exp(c.logprob))}, in all ${number(c.total)}` },
          h("bdi", { class: "name" }, nameOf(c.token)),
          h("span", { class: "bar", "--share": percent(share).replace(" ", "") }, h("i")),
          h("span", { class: "share" }, percent(share)),
          h("span", { class: "why" }, c.why),
        );
      }),
    );
  }

  // -- the tree -----------------------------------------------------------------------------

  function mark() {
    if (!picture) return;
    for (const old of picture.querySelectorAll(".here")) old.classList.remove("here");
    for (const node of picture.querySelectorAll(`[data-node="${step}-${way}"]`)) node.classList.add("here");
  }

  picture?.addEventListener("click", (event) => {
    const node = event.target.closest("[data-step]");
    if (node) go(Number(node.dataset.step), Number(node.dataset.way));
  });

  // -- keys -------------------------------------------------------------------------------

  function pressed(event) {
    if (!element.isConnected) return document.removeEventListener("keydown", pressed);
    const ours = (alone && event.target === document.body) || (root.contains(event.target) && event.target !== slider);
    if (!ours || event.altKey || event.ctrlKey || event.metaKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const to = { Home: 0, End: steps.length - 1 }[event.key];
    if (by === undefined && to === undefined) return;
    event.preventDefault();
    if (by === undefined) go(to);
    else move(by);
  }
  document.addEventListener("keydown", pressed);

  go(0, 0);
  return { element, go };
}
