// Controls, and which figures are drawn again when something is chosen.
import { drawCache, toggle } from "./cache.js";
import { ask, exported } from "./data.js";
import { drawDesign } from "./design.js";
import { colorOf, dashed, element, setPalette, showSliders, slider } from "./draw.js";
import { drawFigures, drawGrowth } from "./growth.js";
import { drawLoad } from "./load.js";
import { drawPath } from "./path.js";
import { drawReads } from "./reads.js";
import { choices, choose, focused, query, state, watch } from "./state.js";

const byId = (id) => document.getElementById(id);
const NUMBERED = /^((?:[^/]*\/)?[a-z-]+:)(\d{1,4})(?![\d,])(.*)$/;
let round = 0;

/** Light or dark, as chosen or as the system has it; whether that is new. */
function theme() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  return document.documentElement.dataset.theme !== before;
}

const nextFrame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

/** What the library says about a question that has no answer. */
function say(error) {
  byId("error").textContent = error ? error.message : "";
  byId("error").hidden = !error;
}

/** In place of a figure, why there is none. */
function fail(card, error) {
  const plot = card.querySelector(".plot");
  plot.replaceChildren();
  delete plot.dataset.key;
  card.querySelector("figcaption").replaceChildren(element("span", { class: "failed" }, error.message));
}

const parts = {
  reads: { needs: () => [focused(), state.n, state.from, state.to], draw: (card, now) => drawReads(card, focused(), now) },
  path: { needs: () => [focused(), state.n, state.from, state.to], draw: (card, now) => drawPath(card, focused(), now) },
  cache: { needs: () => [focused(), state.n, state.t, byId("play")?.textContent], draw: (card, now) => drawCache(card, focused(), now) },
  load: { needs: () => [focused(), state.n], draw: (card, now) => drawLoad(card, focused(), now) },
  growth: { needs: () => [...state.p, state.long], draw: (card, now) => Promise.all([drawGrowth(card, now), drawFigures(byId("figures"), now)]) },
  design: { needs: () => [state.long, state.slots, state.heads, ...state.p], draw: (card, now) => drawDesign(card, now) },
};

/** Draw what has changed; an answer that comes too late is not drawn. New colors change all figures: one in a frame. */
function draw(all = false) {
  const recolored = theme();
  let ready = Promise.resolve();
  controls();
  round += 1;
  for (const [id, part] of Object.entries(parts)) {
    const key = JSON.stringify([part.needs(), document.documentElement.dataset.theme]);
    if (!all && part.key === key && id !== "cache") continue;
    part.key = key;
    const card = byId(id), turn = (part.turn = round);
    const current = () => part.turn === turn;
    if (recolored) ready = ready.then(nextFrame);
    ready.then(() => current() && drawPart(part, card, key, current));
  }
  byId("code").textContent = `${python()}\n\n${command()}`;
}

async function drawPart(part, card, key, current) {
  const wait = setTimeout(() => card.classList.add("busy"), 150);
  try {
    await part.draw(card, current);
  } catch (error) {
    if (current()) fail(card, error);
  }
  clearTimeout(wait);
  if (current()) card.classList.remove("busy");
  if (current()) card.dataset.drawn = key;
}

function controls() {
  byId("chips").replaceChildren(...state.p.map(chip));
  const sliders = [slider("tokens drawn", choices.n, state.n, (n) => choose({ n }))];
  const numbered = exported ? null : focused().match(NUMBERED);
  if (numbered) {
    const [, before, size, after] = numbered;
    const low = 1, high = Math.max(64, 2 * Number(size));
    sliders.push(slider(before.slice(before.lastIndexOf("/") + 1, -1), { low, high }, Number(size), (value) => {
      const p = [...state.p];
      p[state.focus] = `${before}${value}${after}`;
      if (new Set(p).size === p.length) choose({ p });
    }));
  }
  showSliders(byId("sliders"), sliders);
}

function chip(pattern, index) {
  const swatch = element("span", { class: "swatch" });
  swatch.style.borderTopColor = colorOf(pattern);
  swatch.style.borderTopStyle = dashed(pattern) ? "dashed" : "solid";
  const checked = index === state.focus;
  const name = element("button", {
    type: "button", class: "name", role: "radio", "aria-checked": String(checked), tabindex: checked ? 0 : -1,
    onclick: () => choose({ focus: index }), onkeydown: (event) => moveFocus(event, index),
  }, swatch, pattern);
  const remove = state.p.length > 1
    ? [element("button", { type: "button", class: "remove", "aria-label": `Remove ${pattern}`, onclick: () => choose({ p: state.p.filter((each) => each !== pattern), focus: state.focus > index ? state.focus - 1 : state.focus }) }, "×")]
    : [];
  return element("span", { class: "chip" }, name, ...remove);
}

function moveFocus(event, index) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  choose({ focus: (index + step + state.p.length) % state.p.length });
  byId("chips").querySelector('[aria-checked="true"]').focus();
}

/** Add what was typed, if the library takes it. */
async function add(event) {
  event.preventDefault();
  const text = byId("spelling").value.trim();
  if (!text) return;
  try {
    const { spelling } = await ask("scene", { p: text, n: state.n });
    const p = state.p.includes(spelling) ? state.p : [...state.p, spelling].slice(-9);
    say(null);
    byId("spelling").value = "";
    choose({ p, focus: p.indexOf(spelling) });
  } catch (error) {
    say(error);
  }
}

const quoted = (text) => JSON.stringify(text);
const shell = (text) => (/^[\w:+,.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const long = () => Math.min(state.long, 131072);

function python() {
  return [
    "import resolvent as rv", "from resolvent.analysis import paths_to", "",
    `print(rv.compare(${state.p.map(quoted).join(", ")}, n=${state.long}))`,
    `print(rv.analyze(${quoted(focused())}, n=${state.n}))`,
    `print(paths_to(${quoted(focused())}, ${state.to}).path(${state.from}))`,
    `print(rv.design(${long()}, slots=${state.slots}, heads=${state.heads}))`,
  ].join("\n");
}

function command() {
  return [
    `resolvent analyze ${state.p.map(shell).join(" ")} --n ${state.long}`,
    `resolvent analyze ${shell(focused())} --n ${state.n}`,
    `resolvent design --n ${long()} --slots ${state.slots} --heads ${state.heads}`,
    `resolvent explore ${state.p.map(shell).join(" ")} --n ${state.n}`,
  ].join("\n");
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { readonly: true }, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.dataset.name ?? (button.dataset.name = button.textContent);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

async function start() {
  theme();
  const catalogue = await ask("catalogue");
  setPalette(catalogue.palette);
  const samples = [...catalogue.paper, ...catalogue.families.map(({ sample }) => sample)];
  byId("spellings").replaceChildren(...[...new Set(samples)].map((value) => element("option", { value })));
  byId("add").addEventListener("submit", add);
  if (exported) byId("add").hidden = true;
  byId("copy-python").addEventListener("click", (event) => copy(event.currentTarget, python()));
  byId("copy-command").addEventListener("click", (event) => copy(event.currentTarget, command()));
  byId("theme").addEventListener("click", () => choose({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  addEventListener("keydown", (event) => {
    if (event.key !== " " || event.target.closest("input, button, summary, pre")) return;
    event.preventDefault();
    toggle();
  });
  let width = innerWidth, pending = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(pending);
    pending = setTimeout(() => draw(true), 120);
  });
  watch(() => draw());
  history.replaceState(null, "", location.pathname + query() + location.hash);
  draw(true);
}

start().catch(say);
