// Patterns side by side: reads, cache, hops and congestion against the length, and a table at one length.
import { ask, EFFORTS } from "./data.js";
import { apart, colorOf, css, dashed, drawing, element, hover, number, scale, shape, showSliders, slider } from "./draw.js";
import { choices, choose, state } from "./state.js";

const PANELS = { reads: "reads per token", slots: "cache slots", hops: "most hops", congestion: "congestion, at least" };
const HEIGHT = 250, LEFT = 40, TOP = 26, BOTTOM = 30, SHORTLY = 80;  // milliseconds

export async function drawGrowth(card, current) {
  const curves = [], missing = [];
  showSliders(card.querySelector("#length-slider"), [slider("tokens", choices.long, state.long, (long) => choose({ long }))]);
  const asked = state.p.map((p) => ask("curves", { p }).then((answer) => curves.push({ p, answer }), (error) => missing.push(`${p}: ${error.message}`)));
  const wait = new Promise((resume) => setTimeout(resume, SHORTLY));
  await Promise.race([Promise.all(asked), wait]);
  if (!current()) return;
  showCurves(card, curves, missing);  // those that are known are not kept back by those that are not
  if (curves.length + missing.length === asked.length) return;
  await Promise.all(asked);
  if (current()) showCurves(card, curves, missing);
}

function showCurves(card, curves, missing) {
  curves.sort((one, other) => state.p.indexOf(one.p) - state.p.indexOf(other.p));
  const plot = card.querySelector(".plot");
  const columns = getComputedStyle(plot).gridTemplateColumns.split(" ").length;
  const width = Math.floor((plot.clientWidth - 16 * (columns - 1)) / columns) || 300;
  plot.replaceChildren(...Object.entries(PANELS).map(([name, title]) => panel(name, title, curves, width)));
  card.querySelector("figcaption").replaceChildren(
    "Both axes are logarithmic: a straight line is a power of n, a curve that flattens a logarithm. ",
    element("b", {}, "A low line costs little or hinders little; none is low in all four. "),
    "Where curves coincide they share a line in several colors. A line that is missing is infinite.", missing.length ? ` No curves of ${missing.join(" ")}` : "");
}

function panel(name, title, curves, width) {
  const spoken = curves.map(({ p, answer }) => `${p} ${answer[name].law}`).join(", ");
  const svg = drawing(width, HEIGHT, `${title} against the length: ${spoken}`);
  const right = 8 + 6.9 * Math.max(10, ...state.p.map((p) => Math.min(p.length, 18)));
  const all = curves.flatMap(({ answer }) => answer[name].values).filter((value) => value !== null);
  const sizes = curves.flatMap(({ answer }) => answer.n);
  const x = scale(Math.min(...sizes, 16), Math.max(...sizes, 1024), LEFT, width - right);
  const y = scale(1, Math.max(...all, 2), HEIGHT - BOTTOM, TOP);
  axes(svg, x, y, sizes, Math.max(...all, 2), width - right);
  svg.append(shape("text", { x: 0, y: 12, class: "title" }, title));
  const labels = [];
  for (const group of coinciding(curves, name)) {
    group.forEach(({ p, answer }, index) => line(svg, p, answer, name, x, y, index, group.length));
    const { answer } = group[0], values = answer[name].values.map((value, k) => [answer.n[k], value]).filter(([, value]) => value !== null);
    const [n, value] = values.at(-1) ?? [sizes.at(-1), null];
    if (value !== null) for (const each of group) labels.push({ y: y(value) + 4, at: x(n), p: each.p, law: each.answer[name].law });
  }
  apart(labels, 13, TOP + 4, HEIGHT - BOTTOM + 2);
  for (const each of labels) {
    const text = shape("text", { x: width - right + 6, y: each.y, class: "strong" }, each.p.length > 18 ? `${each.p.slice(0, 17)}…` : each.p);
    text.style.fill = colorOf(each.p);
    svg.append(text);
  }
  if (state.long <= Math.max(...sizes)) svg.append(shape("line", { x1: x(state.long), x2: x(state.long), y1: TOP, y2: HEIGHT - BOTTOM, stroke: css("--accent"), "stroke-dasharray": "3 3" }));
  hover(svg, width, HEIGHT, (px) => {
    const nearest = [...new Set(sizes)].reduce((best, n) => (Math.abs(x(n) - px) < Math.abs(x(best) - px) ? n : best));
    const rows = curves.filter(({ answer }) => answer.n.includes(nearest)).map(({ p, answer }) => `${p}: ${number(answer[name].values[answer.n.indexOf(nearest)])}  ${answer[name].law}`);
    return `${title} on ${number(nearest)} tokens\n${rows.join("\n")}`;
  });
  return svg;
}

/** Curves in groups with the same values, which would hide each other. */
function coinciding(curves, name) {
  const groups = new Map();
  for (const curve of curves) {
    const key = curve.answer[name].values.join();
    groups.set(key, [...(groups.get(key) ?? []), curve]);
  }
  return groups.values();
}

function line(svg, p, answer, name, x, y, index, together) {
  const points = answer.n.map((n, k) => [x(n), answer[name].values[k]]).filter(([, value]) => value !== null).map(([px, value]) => `${px},${y(value)}`);
  const more = together > 1 ? { "stroke-dasharray": `9 ${9 * (together - 1)}`, "stroke-dashoffset": -9 * index } : dashed(p) ? { "stroke-dasharray": "5 3" } : {};
  svg.append(shape("polyline", { points: points.join(" "), fill: "none", stroke: colorOf(p), "stroke-width": 2.2, ...more }));
}

export function axes(svg, x, y, sizes, top, right) {
  const grid = (x1, y1, x2, y2) => svg.append(shape("line", { x1, y1, x2, y2, stroke: css("--grid") }));
  const [low, high] = [Math.min(...sizes), Math.max(...sizes)];
  const every = Math.max(1, Math.ceil(Math.log2(high / low) / 5));
  for (let t = Math.ceil(Math.log2(low)); 2 ** t <= high; t += every) {
    grid(x(2 ** t), TOP, x(2 ** t), HEIGHT - BOTTOM);
    svg.append(shape("text", { x: x(2 ** t), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, short(2 ** t)));
  }
  const step = Math.max(1, Math.ceil(Math.log2(top) / 6));
  for (let t = 0; 2 ** t <= top; t += step) {
    grid(LEFT, y(2 ** t), right, y(2 ** t));
    svg.append(shape("text", { x: LEFT - 5, y: y(2 ** t) + 4, "text-anchor": "end" }, short(2 ** t)));
  }
}

export const short = (value) => (value >= 2 ** 20 ? `${value / 2 ** 20}M` : value >= 1024 ? `${value / 1024}k` : `${value}`);

/** The figures of all patterns at the chosen length. */
export async function drawFigures(box, current) {
  const rows = state.p.map((p) => ({ p })), [first, ...later] = EFFORTS;
  await fill(box, rows, current, first);
  for (const effort of current() ? later : []) fill(box, rows.filter(({ answer }) => answer && !exact(answer)), current, effort, rows);
}

const exact = ({ congestion }) => !congestion || congestion.lower === congestion.upper;

/** Ask for rows and show them as they come; one that is refused keeps what it had. */
async function fill(box, asked, current, effort, rows = asked) {
  const answered = Promise.all(asked.map((row) => ask("figures", { p: row.p, n: state.long, effort }).then((answer) => { row.answer = answer; },
    (error) => { row.error = error; }))).then(() => true);
  while (!(await Promise.race([answered, new Promise((resume) => setTimeout(resume, SHORTLY, false))]))) {
    if (!current()) return;
    showFigures(box, rows);
  }
  if (current() && asked.length) showFigures(box, rows);
}

function showFigures(box, rows) {
  const cell = (value, law) => element("td", {}, value, " ", element("span", { class: "law" }, law === "–" ? "" : law));
  const table = element("table", {}, element("caption", {}, `On ${number(state.long)} tokens; how it grows in gray. Least: of any pattern that holds as many positions. ∞: some pair has no path; * over the pairs with one.`),
    element("tr", {}, ...["pattern", "reads", "cache slots", "cache, 12 heads of 64", "most hops", "(least)", "mean hops", "congestion", "(least)"].map((name) => element("th", { scope: "col" }, name))),
    ...rows.map(({ p, answer, error }) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.borderTopColor = colorOf(p);
      swatch.style.borderTopStyle = dashed(p) ? "dashed" : "solid";
      const name = element("th", { scope: "row" }, swatch, ` ${p}`);
      if (error && !answer) return element("tr", {}, name, element("td", { colspan: 8 }, error.message));
      if (!answer) return element("tr", { "aria-busy": "true" }, name, element("td", { colspan: 8, class: "pending" }, "computing …"));
      const unreachable = answer.unreachable_pairs > 0, least = answer.least;
      return element("tr", {}, name,
        cell(number(answer.reads_per_token.max), answer.growth.reads_per_token), cell(number(answer.cache_slots), answer.growth.cache_slots),
        element("td", {}, `${Math.round(answer.cost.cache_bytes / 1024).toLocaleString("en-US")} KiB`),
        cell(unreachable ? "∞" : number(answer.max_hops), unreachable ? "" : answer.growth.max_hops), element("td", {}, least.hops === null ? "" : number(least.hops)),
        element("td", {}, `${answer.mean_hops.toFixed(2)}${unreachable ? "*" : ""}`),
        cell(answer.congestion_text, unreachable ? "" : answer.growth.congestion), element("td", {}, least.congestion === null ? "" : number(least.congestion)));
    }));
  box.replaceChildren(table);
}
