// The designer's frontier: what any pattern needs at least, where the budget ends, and what it buys.
import { ask, known } from "./data.js";
import { css, drawing, element, hover, number, placed, scale, shape, showSliders, slider } from "./draw.js";
import { axes, short } from "./growth.js";
import { choices, choose, state } from "./state.js";

const HEIGHT = 250, LEFT = 40, TOP = 26, BOTTOM = 30, RIGHT = 16, LONGEST = 131072, MOST = 8, SETTLED = 120;  // milliseconds: a slider on its way asks for nothing
const PANELS = { max_hops: "most hops against cache slots", congestion: "congestion against cache slots" };

export async function drawDesign(card, current) {
  const n = Math.min(state.long, LONGEST);
  const sliders = [
    slider("budget: slots", choices.slots.filter((s) => s < n), Math.min(state.slots, n - 1), (slots) => choose({ slots })),
    slider("heads", choices.heads, state.heads, (heads) => choose({ heads })),
  ];
  showSliders(card.querySelector("#design-sliders"), sliders);
  const slots = Math.min(state.slots, n - 1), question = { n, slots, heads: state.heads };
  const bounds = await ask("bounds", { n, slots });
  if (!current()) return;
  if (!known("designs", question)) {
    searching(card, bounds, n, slots);
    await new Promise((resume) => setTimeout(resume, SETTLED));
    if (!current()) return;
  }
  const answer = await ask("designs", question);
  if (!current()) return;
  panels(card, bounds, answer);
  card.querySelector("figcaption").replaceChildren(element("b", {}, `${answer.title}. `), answer.least_text,
    " No single pattern lies in the gray, and what fits the budget is left of the dashed line; the lower, the better. ",
    `Numbers: the best of each kind, listed below. Small dots: all ${number(answer.frontier.length)} on the Pareto frontier, of ${number(answer.considered)} structures. `,
    answer.sampled_text);
  list(card).replaceChildren(...answer.candidates.slice(0, MOST).map(item));
  list(card).removeAttribute("aria-busy");
}

const list = (card) => card.querySelector("#candidates");

/** At once: the bounds and the budget; what was found for another budget is taken away. */
function searching(card, bounds, n, slots) {
  panels(card, bounds, { n, candidates: [], frontier: [] });
  const heads = state.heads === 1 ? "1 head" : `${state.heads} heads`;
  card.querySelector("figcaption").replaceChildren(element("b", {}, `Searching for what fits ${number(slots)} slots in ${heads} on ${number(n)} tokens … `),
    n > 16384 ? "At this length it takes some seconds; everything else on the page can be used meanwhile." : "");
  list(card).replaceChildren();
  list(card).setAttribute("aria-busy", "true");
}

function panels(card, bounds, answer) {
  const plot = card.querySelector(".plot");
  const columns = getComputedStyle(plot).gridTemplateColumns.split(" ").length;
  const width = Math.floor((plot.clientWidth - 24 * (columns - 1)) / columns) || 300;
  plot.replaceChildren(...Object.entries(PANELS).map(([name, title]) => panel(name, title, bounds, answer, width)));
}

const value = (point, name) => (name === "congestion" ? point.figures.congestion.upper : point.figures[name]);

function panel(name, title, bounds, answer, width) {
  const points = answer.candidates.slice(0, MOST), line = bounds[name];
  const svg = drawing(width, HEIGHT, `${title} on ${answer.n} tokens: ${points.map((c, k) => `${k + 1} ${c.label}: ${value(c, name)}`).join("; ")}`);
  const finite = line.filter((each) => each !== null), heights = [...points, ...answer.frontier].map((c) => value(c, name)).filter((each) => each !== "inf");
  const top = Math.max(...finite, ...heights, 2);
  const x = scale(1, bounds.slots.at(-1), LEFT, width - RIGHT), y = scale(1, top, HEIGHT - BOTTOM, TOP);
  axes(svg, x, y, bounds.slots, top, width - RIGHT);
  const corners = bounds.slots.map((s, k) => [x(s), Math.max(y(Math.min(line[k] ?? top * 2, top)), TOP)]);
  const path = corners.map(([px, py]) => `${px} ${py}`).join("L");
  svg.append(shape("path", { d: `M${path}L${corners.at(-1)[0]} ${HEIGHT - BOTTOM}L${LEFT} ${HEIGHT - BOTTOM}Z`, fill: css("--shade") }));
  svg.append(shape("path", { d: `M${path}`, fill: "none", stroke: css("--focus"), "stroke-width": 2 }));
  svg.append(shape("text", { x: 0, y: 12, class: "title" }, title));
  svg.append(shape("text", { x: LEFT + 8, y: HEIGHT - BOTTOM - 8 }, "no single pattern"));
  budget(svg, x(state.slots), width);
  for (const each of answer.frontier) {
    if (value(each, name) !== "inf") svg.append(shape("circle", { cx: x(each.figures.slots), cy: y(value(each, name)), r: 2, fill: css("--accent"), opacity: 0.55, class: "frontier" }));
  }
  marks(svg, points, name, x, y, width);
  hover(svg, width, HEIGHT, (px, py) => {
    const near = points.map((c, k) => [Math.hypot(x(c.figures.slots) - px, y(value(c, name)) - py), k]).sort((a, b) => a[0] - b[0])[0];
    if (near && near[0] < 14) return `${near[1] + 1}  ${points[near[1]].label}\n${figures(points[near[1]])}`;
    const dot = answer.frontier.find((c) => Math.hypot(x(c.figures.slots) - px, y(value(c, name)) - py) < 5);
    if (dot) return `${dot.label}\n${figures(dot)}`;
    const at = bounds.slots.reduce((best, s) => (Math.abs(x(s) - px) < Math.abs(x(best) - px) ? s : best));
    return `with ${number(at)} slots: ${number(line[bounds.slots.indexOf(at)])} is the least of one pattern`;
  });
  return svg;
}

function budget(svg, at, width) {
  svg.append(shape("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, stroke: css("--accent"), "stroke-width": 2, "stroke-dasharray": "6 4", class: "budget" }));
  const right = at < width - 90;
  svg.append(shape("text", { x: right ? at + 6 : at - 6, y: TOP + 8, class: "strong", "text-anchor": right ? "start" : "end" }, `budget ${short(state.slots)}`));
}

/** Numbered points; those too near to tell apart share a name. */
function marks(svg, points, name, x, y, width) {
  const groups = [], dots = [];
  points.forEach((point, index) => {
    if (value(point, name) === "inf") return;
    const at = [x(point.figures.slots), y(value(point, name))];
    const near = groups.find((group) => Math.hypot(group.at[0] - at[0], group.at[1] - at[1]) < 12);
    dots.push(at);
    svg.append(shape("circle", { cx: at[0], cy: at[1], r: 5, fill: css("--accent"), stroke: css("--card"), "stroke-width": 1.5 }));
    if (near) near.ranks.push(index + 1);
    else groups.push({ at, ranks: [index + 1] });
  });
  const labels = groups.map(({ at, ranks }) => ({ x: at[0], y: at[1], text: ranks.join(", ") }));
  for (const each of placed(labels, dots, width, HEIGHT - BOTTOM)) {
    svg.append(shape("text", { x: each.x, y: each.y, class: "strong", "text-anchor": each.anchor }, each.text));
  }
}

function figures(candidate) {
  const f = candidate.figures, load = f.congestion;
  const congestion = load.exact ? number(load.lower) : `${number(load.lower)} … ${number(load.upper)}`;
  const round = (each) => Number(each.toFixed(2)).toLocaleString("en-US");
  return `${round(f.reads)} reads, ${round(f.slots)} slots, ${number(f.max_hops)} hops, ${f.mean_hops.toFixed(2)} on average, congestion ${congestion}`;
}

function item(candidate, index) {
  const single = typeof candidate.pattern === "string";
  const held = single && state.p.includes(candidate.pattern);
  const button = single && !held && !choices.to
    ? [element("button", { type: "button", onclick: () => choose({ p: [...state.p, candidate.pattern].slice(-9), focus: Math.min(state.p.length, 8) }) }, "See it")]
    : [];
  return element("li", {}, ...button, element("span", { class: "rank" }, `${index + 1}`), element("span", { class: "name" }, candidate.label),
    element("p", {}, figures(candidate)), element("p", {}, candidate.why));
}
