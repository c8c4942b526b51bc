// What is chosen, kept in the address of the page.
import { exported } from "./data.js";

const LENGTHS = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096];
const LONG = Array.from({ length: 13 }, (_, t) => 2 ** (t + 8));
const SLOTS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
const HEADS = [1, 2, 4, 8, 12, 16];
const NUMBERS = ["focus", "n", "from", "to", "t", "long", "slots", "heads"];
const START = {
  p: ["exponential+cache", "exponential", "quadratic+cache", "first-order", "attention"],
  focus: 0, n: 64, from: 5, to: 60, t: 40, long: 1024, slots: 16, heads: 1, theme: "",
};
const listeners = [];

export const choices = exported ? exported.choices : { n: LENGTHS, long: LONG, slots: SLOTS, heads: HEADS, to: null };
export const state = { ...START, ...(exported ? exported.state : {}), ...fromAddress() };
repair();

function fromAddress() {
  const query = new URLSearchParams(location.search);
  const chosen = {};
  if (query.has("p")) chosen.p = [...new Set(query.getAll("p"))].slice(0, 9);
  for (const name of NUMBERS) {
    const value = Number(query.get(name));
    if (query.has(name) && Number.isInteger(value) && value >= 0) chosen[name] = value;
  }
  if (["light", "dark"].includes(query.get("theme"))) chosen.theme = query.get("theme");
  return chosen;
}

/** Bring tokens back into the sequence, and choices to what can be chosen. */
function repair() {
  for (const name of ["n", "long", "slots", "heads"]) state[name] = nearest(choices[name], state[name]);
  if (exported) state.p = state.p.filter((each) => exported.state.p.includes(each));
  if (!state.p.length) state.p = exported ? exported.state.p : START.p;
  state.focus = Math.min(state.focus, state.p.length - 1);
  state.to = Math.min(Math.max(state.to, 1), state.n - 1);
  if (choices.to) state.to = nearest(choices.to, state.to);
  state.from = Math.min(state.from, state.to - 1);
  state.t = Math.min(state.t, state.n - 1);
}

export function nearest(list, value) {
  return list.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best), list[0]);
}

export const query = () => {
  const parts = new URLSearchParams(state.p.map((each) => ["p", each]));
  for (const name of NUMBERS) parts.set(name, state[name]);
  if (state.theme) parts.set("theme", state.theme);
  return `?${parts}`;
};

/** Change what is chosen; tokens keep their share of the sequence when its length changes. */
export function choose(change) {
  if ("n" in change && change.n !== state.n) {
    const scaled = (token) => Math.round((token * change.n) / state.n);
    change = { from: scaled(state.from), to: scaled(state.to), t: scaled(state.t), ...change };
  }
  Object.assign(state, change);
  repair();
  history.replaceState(null, "", location.pathname + query() + location.hash);
  for (const listener of listeners) listener();
}

export const watch = (listener) => listeners.push(listener);
export const focused = () => state.p[state.focus];
