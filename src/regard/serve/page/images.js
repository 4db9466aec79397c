// Images: dropped or chosen, and shown as the model was shown them, with what it looked at laid over.

import { layers } from "./attention.js";
import { ask, bars, choice, colour, drawn, fixed, h, lately, percent, shade } from "./dom.js";
import { labels } from "./jobs.js";
import { search } from "./tree.js";

const MOST_BYTES = 600_000; // a server takes a megabyte, and base64 makes more of it
const MOST_SIDE = 1024;

/** An image with a grid of shares over it: what has none is pale. */
export function overlay(label) {
  const canvas = h("canvas", { width: 448, height: 448, role: "img", "aria-label": label });
  const image = new Image();
  let weights = null;

  function draw() {
    const pen = canvas.getContext("2d");
    const { width, height } = canvas;
    pen.globalAlpha = 1;
    pen.imageSmoothingEnabled = image.width > 64;
    pen.fillStyle = colour("paper");
    pen.fillRect(0, 0, width, height);
    if (image.width) pen.drawImage(image, 0, 0, width, height);
    if (!weights) return;
    const most = Math.max(...weights.flat(), 1e-9);
    const [high, wide] = [height / weights.length, width / weights[0].length];
    weights.forEach((row, y) =>
      row.forEach((share, x) => {
        pen.globalAlpha = 0.85 * (1 - shade(share / most));
        pen.fillStyle = colour("paper");
        pen.fillRect(x * wide, y * high, wide, high);
      }),
    );
    const [y, x] = strongest(weights);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("write");
    pen.lineWidth = 3;
    pen.strokeRect(x * wide + 1.5, y * high + 1.5, wide - 3, high - 3);
  }
  image.addEventListener("load", draw);
  const box = drawn(h("figure", { class: "photo" }, canvas), draw);
  const show = (data, shares) => {
    weights = shares;
    const url = `data:image/jpeg;base64,${data}`;
    if (data && image.src !== url) image.src = url;
    else draw();
  };
  return { box, show };
}

/** Row and column of the largest. */
export function strongest(weights) {
  const most = Math.max(...weights.flat());
  const y = weights.findIndex((row) => row.includes(most));
  return [y, weights[y].indexOf(most)];
}

/** A place to drop or choose an image; `taken(base64)` gets the bytes of its file. */
function chooser(taken, report) {
  const input = h("input", { type: "file", accept: "image/*", "aria-label": "Choose an image" });
  const box = h("label", { class: "drop ring" }, h("span", {}, "Drop an image here, paste one, or choose a file"), input);
  async function take(file) {
    if (!file) return;
    try {
      report("");
      taken(await base64(await small(file)));
    } catch (error) {
      report(error.message);
    }
  }
  input.addEventListener("change", () => take(input.files[0]));
  box.addEventListener("dragover", (event) => (event.preventDefault(), box.classList.add("over")));
  box.addEventListener("dragleave", () => box.classList.remove("over"));
  box.addEventListener("drop", (event) => {
    event.preventDefault();
    box.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  const pasted = (event) => (box.isConnected ? take(event.clipboardData.files[0]) : removeEventListener("paste", pasted));
  addEventListener("paste", pasted);
  return box;
}

/** A file that is not too large to be sent: a larger image with fewer pixels. */
async function small(file) {
  if (file.size <= MOST_BYTES) return file;
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} is not an image that this browser can read`);
  });
  const scale = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  const paper = canvas.getContext("2d");
  paper.fillStyle = "white"; // where the image is transparent, as the server has it
  paper.fillRect(0, 0, canvas.width, canvas.height);
  paper.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file cannot be read"));
    reader.readAsDataURL(blob);
  });
}

/** Classify, caption or match an image, and see what the model looked at. */
export function imageView(model) {
  let image = null;
  let lines = ["a dog", "a cat", "a house", "two people"];
  const problem = h("p", { class: "bad", role: "status" });
  const answer = h("div", { "aria-live": "polite" });
  const note = h("p", { class: "note looked", "aria-live": "polite" });
  const photo = overlay("The image as the model sees it, pale where it did not look");
  photo.box.hidden = true;

  const answers = {
    classify: async (signal) => {
      const { answers: [found] } = await ask("classify", { model: model.name, images: [image] }, signal);
      return labels(found);
    },
    match: async (signal) => {
      const { answers: [found] } = await ask("match", { model: model.name, images: [image], texts: lines }, signal);
      const rows = lines.map((name, i) => ({ name, share: found.probabilities[i], tip: `cosine ${fixed(found.cosines[i], 3)}` }));
      return [bars(rows, "How well each text fits")];
    },
    caption: async (signal) => {
      const seen = await ask("look/caption", { model: model.name, image }, signal);
      return glimpses(seen);
    },
  };

  /** The words of a caption; the one under the pointer shows where it looked. */
  function glimpses(seen) {
    const buttons = seen.words.map((word, i) => {
      const go = () => press(i);
      const how = { type: "button", "aria-pressed": "false", onpointerenter: go, onfocus: go, onclick: go };
      return h("button", how, h("bdi", {}, word));
    });
    function press(i) {
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
      photo.show(seen.image, seen.weights[i]);
      const [y, x] = strongest(seen.weights[i]);
      const most = `row ${y + 1}, column ${x + 1}: ${percent(seen.weights[i][y][x])}`;
      note.textContent = `“${seen.words[i]}” looked most at ${most} (layer ${seen.layer}, head ${seen.head})`;
    }
    photo.box.hidden = false;
    if (buttons.length) queueMicrotask(() => press(0));
    else photo.show(seen.image, null);
    return [h("div", { class: "words" }, buttons), h("p", { class: "note" }, "Point at a word to see where it looked.")];
  }

  const work = lately(async (signal) => {
    if (!image) return;
    answer.replaceChildren(...(await answers[model.task](signal)).filter((part) => part));
    if (model.task === "caption") grow.now();
    else await over(signal);
  }, (line) => (problem.textContent = line), 150);

  // What is laid over: the rollout, or what one head looks at from one patch.
  const known = layers(model)["encoder.self"] ?? [];
  let layer = "rollout";
  let head = null;
  let seen = null;
  const heads = h("div", { class: "row" });
  const options = [["rollout", "Rollout"], ...known.map((name, i) => [name, `Layer ${i}`])];
  const picker = choice("What is laid over", options, layer, (to) => ((layer = to), (head = null), work.now()));
  const pickers = h("div", { class: "row", hidden: true }, picker, heads);

  async function over(signal) {
    if (layer === "rollout") {
      const { weights, image: shown } = await ask("look/rollout", { model: model.name, image }, signal);
      const [y, x] = strongest(weights);
      heads.replaceChildren();
      seen = null;
      photo.show(shown, weights);
      note.textContent = `Most of what is decided on came from row ${y + 1}, column ${x + 1}: ${percent(weights[y][x])}`;
    } else {
      seen = await ask("look/attention", { model: model.name, image, layer, head }, signal);
      const of = seen.thumbs.map((_, i) => [i, `Head ${i}`]);
      heads.replaceChildren(choice("Head", of, seen.head, (to) => ((head = to), work.now())));
      from(0);
    }
    photo.box.hidden = pickers.hidden = false;
  }

  function from(row) {
    const { side, weights, rows } = seen;
    const shares = weights[row].slice(-side * side);
    photo.show(seen.image, Array.from({ length: side }, (_, y) => shares.slice(y * side, (y + 1) * side)));
    note.textContent = `What ${rows[row]} looks at. Point at a patch to see what it looks at.`;
  }
  const patch = overlayPointer(photo.box, () => seen, from);

  const [tree, grow] = search(model, "How it chose", () => image && { image, beam: 4 });

  const drop = chooser((data) => ((image = data), work.now()), (line) => (problem.textContent = line));
  const box = h("section", { class: "card" }, h("h3", {}, "Image"), drop, problem);
  if (model.task === "match") {
    const area = h("textarea", { class: "lines", rows: "4", dir: "auto", "aria-label": "Texts, one a line" });
    area.value = lines.join("\n");
    area.addEventListener("input", () => {
      lines = area.value.split("\n").filter((line) => line.trim());
      if (lines.length) work();
    });
    box.append(h("h3", {}, "Texts, one a line"), area);
  }
  const title = { classify: "Label", caption: "Caption", match: "How well each text fits" }[model.task];
  const out = h("section", { class: "card" }, h("h3", {}, title), answer);
  const looks = h("section", { class: "card" }, h("h2", {}, "What it looks at"), pickers, patch, note);
  return [[h("div", { class: "panes" }, box, out), looks, ...(model.task === "caption" ? [tree] : [])], () => {}];
}

/** Lets the pointer choose the patch that looks. */
function overlayPointer(box, seen, from) {
  box.addEventListener("pointermove", (event) => {
    const now = seen();
    if (!now) return;
    const { x, y, width, height } = box.getBoundingClientRect();
    const place = (at) => Math.max(0, Math.min(now.side - 1, Math.floor(at * now.side)));
    const cell = place((event.clientY - y) / height) * now.side + place((event.clientX - x) / width);
    from(now.rows.length - now.side ** 2 + cell);
  });
  return box;
}
