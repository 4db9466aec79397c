// Building blocks of the page. Text only ever becomes text here: nothing parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("p", { class: "note", onclick: f }, "text", another). */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same of SVG. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else if (name === "tip") element.dataset.tip = value;
    else if (element instanceof HTMLElement && name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// -- numbers ------------------------------------------------------------------------------

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const fixed = (number, digits = 2) => number.toFixed(digits).replace("-", "−");
export const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

/** A token without the mark of the space before it, where there is little room; a space alone is open at the top. */
export const bare = (token) => (token === "▁" ? "␣" : token.replace(/^▁/, ""));

export function short(text, most = 60) {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

// -- the server ---------------------------------------------------------------------------

/** Why there is no answer, in the server's own line. */
export class Refusal extends Error {}

let key = sessionStorage.getItem("key");
let asking = 0;

/** POST where there is a body, else GET. Throws a Refusal where the server refuses. */
export async function ask(path, body, signal) {
  busy(1);
  try {
    return await (await send(path, body, signal)).json();
  } finally {
    busy(-1);
  }
}

/** What a stream of events brings, one by one. */
export async function* stream(path, body, signal) {
  busy(1);
  try {
    const reader = (await send(path, { ...body, stream: true }, signal)).body.getReader();
    const decoder = new TextDecoder();
    let held = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += decoder.decode(value, { stream: true });
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        if (event === "data: [DONE]") return;
        const said = JSON.parse(event.slice("data: ".length));
        if (said.error) throw new Refusal(said.error.message);
        yield said;
      }
    }
  } finally {
    busy(-1);
  }
}

async function send(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const how = body === undefined ? { headers, signal } : { method: "POST", body: JSON.stringify(body), headers, signal };
  let answer;
  try {
    answer = await fetch(path, how);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is it still running?");
  }
  if (answer.status === 401) {
    key = await wanted();
    return send(path, body, signal);
  }
  if (key) sessionStorage.setItem("key", key); // which is right
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Refusal(told.error?.message ?? `The server answered with ${answer.status}.`);
}

let waiting; // one question for the key, however many requests wait for it

function wanted() {
  waiting ??= new Promise((resolve) => {
    const input = h("input", { type: "password", autocomplete: "current-password", required: true, class: "button" });
    const form = h(
      "form",
      { class: "card row" },
      h("label", { class: "row" }, "This server wants its key:", input),
      h("button", { class: "button main" }, "Enter"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      waiting = undefined;
      resolve(input.value.replace(/[^\x20-\x7e]/g, "")); // nothing else can stand in a header
    });
    document.getElementById("main").before(form);
    input.focus();
  });
  return waiting;
}

/** Something more is under way, or less: what is about to be asked counts too. */
function busy(change) {
  asking += change;
  document.getElementById("busy").hidden = asking === 0;
  document.getElementById("main").setAttribute("aria-busy", String(asking > 0));
}

/** A function that runs a while after it was last called, or at once by its `now`; what it had begun is called off. */
export function lately(work, report, delay = 250) {
  let control;
  const run = (wait) => (...given) => {
    control?.abort();
    control = new AbortController();
    const { signal } = control;
    const timer = setTimeout(async () => {
      signal.removeEventListener("abort", never);
      try {
        report("");
        await work(signal, ...given);
      } catch (error) {
        if (error.name === "AbortError" || signal.aborted) return;
        report(error.message);
        if (!(error instanceof Refusal)) console.error(error); // a mistake of ours
      } finally {
        busy(-1);
      }
    }, wait);
    const never = () => (clearTimeout(timer), busy(-1));
    signal.addEventListener("abort", never);
    busy(1);
  };
  return Object.assign(run(delay), { now: run(0) });
}

// -- what is under the pointer, or has the focus --------------------------------------------

const tip = h("div", { id: "tip", role: "tooltip", hidden: true });

export function tell(text, x, y) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 4))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

export function tips() {
  document.body.append(tip);
  document.addEventListener("pointerover", (event) => {
    const about = event.target.closest?.("[data-tip]");
    tell(about?.dataset.tip, event.clientX, event.clientY);
  });
  document.addEventListener("scroll", () => tell(""), { capture: true, passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && tell(""));
}

// -- controls -----------------------------------------------------------------------------

export function button(label, go, { kind = "", ...props } = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick: go, ...props }, label);
}

let numbered = 0;

/** Radio buttons side by side; options are [value, label] pairs. The arrow keys work as they do on any. */
export function choice(legend, options, value, changed) {
  const name = `choice${numbered++}`;
  const boxes = options.map(([of, label]) => {
    const radio = { type: "radio", name, value: String(of), checked: of === value, onchange: () => changed(of) };
    return h("label", {}, h("input", radio), label);
  });
  return h("div", { class: "choice", role: "radiogroup", "aria-label": legend }, boxes);
}

export function slider(label, { min, max, step, value, say = String }, changed) {
  const shown = h("span", {}, say(value));
  const input = h("input", { type: "range", "aria-label": label, "aria-valuetext": say(value) });
  for (const [name, of] of Object.entries({ min, max, step, value })) input.setAttribute(name, String(of));
  input.addEventListener("input", () => {
    shown.textContent = say(Number(input.value));
    input.setAttribute("aria-valuetext", shown.textContent);
    changed(Number(input.value));
  });
  return h("label", { class: "slider" }, label, shown, input);
}

/** Rows with a share each. One with a `go` can be pressed. */
export function bars(rows, label) {
  return h(
    "ol",
    { class: "bars", "aria-label": label },
    rows.map(({ name, share, note = percent(share), go, out, tip: about, width = share }) => {
      const kind = `bar${out ? " out" : ""}${width > 0 ? "" : " none"}`;
      const parts = [h("bdi", { class: "name" }, name), h("i"), h("span", { class: "share" }, note)];
      const how = { class: kind, tip: about, style: { "--share": `${Math.max(0, 100 * width)}%` } };
      return h("li", {}, go ? h("button", { type: "button", onclick: go, ...how }, parts) : h("div", how, parts));
    }),
  );
}

// -- tokens -------------------------------------------------------------------------------

export const MOST_CHIPS = 3000;

export function chip(token, props = {}) {
  const body = token.startsWith("▁") && token.length > 1 ? [h("i", {}, "▁"), token.slice(1)] : [token];
  return h("span", { ...props, class: `tok ${props.class ?? ""}`, dir: "auto" }, body);
}

/** Tokens in a row, with their ids under the pointer. The arrow keys go from one to the next. */
export function strip({ tokens, ids, special = [], label, picked = () => {} }) {
  const name = `strip${numbered++}`;
  const shown = tokens.slice(0, MOST_CHIPS).map((token, i) => {
    const about = ids ? `${token}\nid ${ids[i]}, token ${i + 1}` : token;
    return chip(token, { id: `${name}-${i}`, role: "option", class: special[i] ? "special" : "", tip: about });
  });
  const box = h("div", { class: "strip", tabindex: "0", role: "listbox", "aria-label": label }, shown);
  const left = tokens.length - shown.length;
  if (left) box.append(h("span", { class: "note" }, `and ${left.toLocaleString("en")} more`));
  let now = -1;
  const go = (to, seen) => {
    if (to === now || (to >= 0 && !shown[to])) return;
    shown[now]?.classList.remove("on");
    now = to;
    shown[now]?.classList.add("on");
    if (seen && shown[now]) {
      box.setAttribute("aria-activedescendant", shown[now].id);
      shown[now].scrollIntoView({ block: "nearest" });
      const { left, bottom } = shown[now].getBoundingClientRect();
      tell(shown[now].dataset.tip, left - 12, bottom - 14);
    }
    picked(now);
  };
  box.addEventListener("pointerover", (event) => go(shown.indexOf(event.target.closest(".tok"))));
  box.addEventListener("pointerleave", () => go(-1));
  box.addEventListener("blur", () => (go(-1), tell("")));
  arrows(box, () => now, shown.length, (to) => go(to, true));
  return Object.assign(box, { shown, go });
}

/** The arrow keys, Home and End for something that counts. */
export function arrows(element, now, n, go) {
  element.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    go(Math.max(0, Math.min(n - 1, now() + by)));
  });
}

/** How dark a share is drawn: small ones are to be seen too. The same everywhere. */
export const shade = (share) => Math.pow(Math.max(0, Math.min(1, share)), 0.6);

/** The page's colours, for what is drawn on a canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Calls a function when its element has a width, and again where that or the colours change. */
export function drawn(element, draw) {
  let width = 0;
  const sized = () => element.clientWidth && element.clientWidth !== width && ((width = element.clientWidth), draw());
  new ResizeObserver(sized).observe(element);
  const themed = () => (element.isConnected ? draw() : removeEventListener("theme", themed));
  addEventListener("theme", themed);
  return element;
}
