// What all figures share: elements, scales, colors, labels that do not cover each other, hints.
import { state } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";
const hintBox = document.getElementById("hint");
let palette = null;

export const setPalette = (value) => { palette = value; };
export const isDark = () => document.documentElement.dataset.theme === "dark";
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const number = (value) => (value === null || value === undefined ? "∞" : value.toLocaleString("en-US"));

/** The color of a pattern: the paper's structures have theirs, others the next that is free. */
export function colorOf(pattern) {
  const known = palette.structures[pattern];
  const others = state.p.filter((each) => !(each in palette.structures));
  const pair = known ?? palette.others[Math.max(others.indexOf(pattern), 0) % palette.others.length];
  return pair[isDark() ? 1 : 0];
}

export const dashed = (pattern) => pattern.includes("+cache");
export const entryColor = (name) => palette.entries[name][isDark() ? 1 : 0];

/** From light to dark (on dark pages from dark to light): 0 to 1. */
export function ramp(share) {
  const stops = isDark()
    ? [[44, 62, 92], [58, 110, 165], [67, 163, 176], [139, 211, 158], [243, 233, 155]]
    : [[247, 214, 130], [236, 150, 92], [200, 85, 90], [128, 52, 112], [48, 30, 82]];
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const mixed = stops[low].map((value, k) => Math.round(value + (place - low) * (stops[low + 1][k] - value)));
  return `rgb(${mixed.join(",")})`;
}

/** Whether text on a color of the ramp is light. */
export const inkOn = (share) => ((isDark() ? share < 0.45 : share > 0.4) ? "#fff" : "#14171c");

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function shape(tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** An empty drawing with a text for those who cannot see it. */
export function drawing(width, height, description) {
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": description });
  return svg;
}

export function canvas(width, height, description) {
  const made = element("canvas", { role: "img", "aria-label": description });
  const density = Math.min(window.devicePixelRatio || 1, 2);
  made.width = Math.round(width * density);
  made.height = Math.round(height * density);
  made.style.height = `${height}px`;
  const context = made.getContext("2d");
  context.scale(density, density);
  return [made, context];
}

/** A scale from values to pixels, by logarithms or not. */
export function scale(low, high, from, to, logarithmic = true) {
  const place = logarithmic ? Math.log2 : (x) => x;
  const [a, b] = [place(low), place(high)];
  return (value) => from + ((place(Math.max(value, logarithmic ? low / 2 : value)) - a) / (b - a || 1)) * (to - from);
}

/** Move labels apart, each as little as possible, from top to bottom within bounds. */
export function apart(labels, gap, top, bottom) {
  const sorted = [...labels].sort((one, other) => one.y - other.y);
  let edge = top;
  for (const label of sorted) {
    label.y = Math.max(label.y, edge);
    edge = label.y + gap;
  }
  edge = bottom;
  for (const label of sorted.reverse()) {
    label.y = Math.min(label.y, edge);
    edge = label.y - gap;
  }
}

/** Where texts go: for each {x, y, text, points} the first corner that is free of points and of other texts. */
export function placed(labels, dots, width, height) {
  const taken = dots.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
  const corners = [[-8, -7, "end"], [8, -7, "start"], [-8, 16, "end"], [8, 16, "start"], [0, -14, "middle"], [0, 24, "middle"], [-8, -24, "end"], [8, 33, "start"]];
  return labels.map((label) => {
    const size = 7 * label.text.length;
    const boxes = corners.map(([dx, dy, anchor]) => {
      const left = label.x + dx - (anchor === "end" ? size : anchor === "middle" ? size / 2 : 0), base = label.y + dy;
      return { x: label.x + dx, y: base, anchor, box: [left, base - 10, left + size, base + 2] };
    });
    const free = ({ box: [a, b, c, d] }) => a > 0 && b > 0 && c < width && d < height && !taken.some(([e, f, g, h]) => a < g && e < c && b < h && f < d);
    const best = boxes.find(free) ?? boxes[0];
    taken.push(best.box);
    return { ...best, text: label.text };
  });
}

export function hint(event, text) {
  if (!text) {
    hintBox.hidden = true;
    return;
  }
  hintBox.textContent = text;
  hintBox.hidden = false;
  const box = hintBox.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
  const above = event.clientY + 16 + box.height > innerHeight;
  hintBox.style.left = `${Math.max(left, 6)}px`;
  hintBox.style.top = `${above ? event.clientY - box.height - 10 : event.clientY + 16}px`;
}

/** Hints while the pointer is over an element: what `text(x, y)` says, in the pixels of `width` × `height`. */
export function hover(target, width, height, text, click = null) {
  const at = (event) => {
    const box = target.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  };
  target.addEventListener("pointermove", (event) => hint(event, text(...at(event))));
  target.addEventListener("pointerleave", (event) => hint(event, ""));
  if (click) target.addEventListener("click", (event) => click(...at(event)));
}

/** A slider over numbers or over a list of choices. */
export function slider(label, values, value, change, format = number) {
  const list = Array.isArray(values) ? values : null;
  const [low, high] = list ? [0, list.length - 1] : [values.low, values.high];
  const id = `slider-${label.replaceAll(/[^a-z]+/gi, "-").toLowerCase()}`;
  const shown = element("output", { for: id }, format(value));
  const input = element("input", {
    type: "range", id, min: low, max: high, step: 1, disabled: low >= high,
    "aria-valuetext": format(value),
    oninput: () => change(list ? list[Number(input.value)] : Number(input.value)),
  });
  input.value = list ? list.indexOf(value) : value;
  return element("div", { class: "slider" }, element("label", { for: id }, label), input, shown);
}

/** Put sliders into their places; one that is being moved stays what it is. */
export function showSliders(box, sliders) {
  const active = document.activeElement;
  if (active && box.contains(active) && active.type === "range") {
    for (const made of sliders) {
      const fresh = made.querySelector("input");
      const kept = document.getElementById(fresh.id);
      if (!kept) continue;
      const row = kept.parentElement;
      row.querySelector("output").textContent = made.querySelector("output").textContent;
      for (const name of ["min", "max", "aria-valuetext"]) kept.setAttribute(name, fresh.getAttribute(name));
      kept.disabled = fresh.disabled;
      if (kept !== active || kept.value !== fresh.value) kept.value = fresh.value;
    }
    if (sliders.length === box.querySelectorAll(".slider").length) return;
  }
  box.replaceChildren(...sliders);
}
