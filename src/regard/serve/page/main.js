// The page: which models there are, which is shown and how, light or dark.

import { ask, choice, h, tips } from "./dom.js";
import { modes, views } from "./jobs.js";

const main = document.getElementById("main");
const select = document.getElementById("models");

function theme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  dispatchEvent(new Event("theme"));
}

const prefers = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem("theme");
theme(chosen() ? chosen() === "dark" : prefers.matches);
prefers.addEventListener("change", () => chosen() ?? theme(prefers.matches));
document.getElementById("theme").addEventListener("click", () => {
  const dark = !document.documentElement.classList.contains("dark");
  localStorage.setItem("theme", dark ? "dark" : "light");
  theme(dark);
});

const SIZES = [[1e9, "billion"], [1e6, "million"], [1e3, "thousand"]];

function size(n) {
  const [unit, name] = SIZES.find(([unit]) => n >= unit) ?? [1, ""];
  return `${(n / unit).toLocaleString("en", { maximumSignificantDigits: 3 })} ${name}`.trim();
}

function facts(model) {
  const towers = model.attention.map(({ tower, layers, heads }) => {
    const n = layers.filter((layer) => layer.endsWith("self")).length;
    const told = n ? `${n} layers` : "attention";
    return `${tower} ${told}${heads > 1 ? ` of ${heads} heads` : ""}`;
  });
  return [`${size(model.parameters)} parameters`, ...towers].join(" · ");
}

function show(model, mode) {
  const known = modes(model);
  mode = known.some(([view]) => view === mode) ? mode : known[0]?.[0];
  document.title = `${model.name} · regard`;
  document.getElementById("facts").textContent = facts(model);
  select.value = model.name;
  const none = `There is no view of a model that was trained to ${model.task}.`;
  if (!mode) return main.replaceChildren(h("p", { class: "card" }, none));
  const tabs = known.length > 1 ? [h("div", {}, choice("What to do", known, mode, (to) => go(model.name, to)))] : [];
  const [parts, start] = views[mode](model);
  main.replaceChildren(...tabs, ...parts);
  main.dataset.view = mode;
  start();
}

const go = (name, mode = "") => (location.hash = `#${encodeURIComponent(name)}${mode && `/${mode}`}`);

async function begin() {
  tips();
  let models;
  try {
    ({ models } = await ask("look/models"));
  } catch (error) {
    return main.replaceChildren(h("p", { class: "card bad" }, error.message));
  }
  select.replaceChildren(...models.map(({ name, task }) => h("option", { value: name }, `${name} (${task})`)));
  select.addEventListener("change", () => go(select.value));
  const route = () => {
    const [name, mode] = location.hash.slice(1).split("/").map(decodeURIComponent);
    show(models.find((model) => model.name === name) ?? models[0], mode);
  };
  addEventListener("hashchange", route);
  route();
}

begin();
