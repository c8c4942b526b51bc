// The way from one token to another: an arc for each hop, and how many hops every other token needs.
import { ask, integers } from "./data.js";
import { css, drawing, element, entryColor, hover, number, ramp, shape, showSliders, slider } from "./draw.js";
import { listed, scene } from "./reads.js";
import { choices, choose, state } from "./state.js";

const LEFT = 14, MOST_NAMED = 40;
// Heights of the line of tokens, of the strip and of all: as high as the widest arc needs.
const heights = (width) => {
  const line = Math.min(212, Math.round(0.36 * width));
  return { line, strip: line + 46, all: line + 88 };
};

async function tree(pattern) {
  const answer = await ask("paths", { p: pattern, n: state.n, to: state.to });
  answer.ready ??= Promise.all([answer.hops, answer.first, answer.later].map(integers));
  const [hops, first, later] = await answer.ready;
  return { to: answer.to, hops, first, later };
}

/** The positions on the way, as the library lists them: each names the next. */
function way(paths, from) {
  if (paths.hops[from] < 0) return [];
  const nodes = [from, paths.first[from]];
  while (nodes.at(-1) !== paths.to) nodes.push(paths.later[nodes.at(-1)]);
  return nodes;
}

export async function drawPath(card, pattern, current) {
  const [paths, shown] = await Promise.all([tree(pattern), scene(pattern)]);
  if (!current()) return;
  const plot = card.querySelector(".plot"), width = plot.clientWidth || 600, n = shown.n;
  const nodes = way(paths, state.from), hops = nodes.length - 1;
  const x = (token) => LEFT + ((width - 2 * LEFT) * (token + 0.5)) / n;
  const spoken = nodes.length ? `${pattern}: token ${state.from} reaches token ${state.to} in ${hops} hops, through ${listed(nodes)}`
    : `${pattern}: there is no path from token ${state.from} to token ${state.to}`;
  const tall = heights(width);
  const svg = drawing(width, tall.all, spoken);
  strip(svg, paths, x, n, width, tall.strip);
  svg.append(shape("line", { x1: LEFT, x2: width - LEFT, y1: tall.line, y2: tall.line, stroke: css("--rule"), "stroke-width": 1.5 }));
  const tallest = tall.line - 14;
  for (let k = 0; k < hops; k++) {
    const [a, b] = [nodes[k], nodes[k + 1]], radius = (x(b) - x(a)) / 2;
    const kind = Object.keys(shown.entries).find((name) => shown.entries[name].has(b, a)) ?? "A and B";
    svg.append(shape("path", {
      d: `M${x(a)} ${tall.line}A${radius} ${Math.min(radius, tallest)} 0 0 1 ${x(b)} ${tall.line}`, fill: "none",
      stroke: entryColor(kind), "stroke-width": hops > 200 ? 0.6 : 2, class: "hop",
    }));
  }
  dots(svg, nodes, x, tall.line);
  hover(svg, width, tall.all, (px) => {
    const token = Math.min(Math.max(Math.floor(((px - LEFT) / (width - 2 * LEFT)) * n), 0), n - 1);
    if (token > state.to) return `token ${number(token)} comes after token ${number(state.to)}`;
    const far = paths.hops[token];
    return far < 0 ? `token ${number(token)} does not reach token ${number(state.to)}`
      : `token ${number(token)} reaches token ${number(state.to)} in ${number(far)} ${far === 1 ? "hop" : "hops"}`;
  }, (px) => choose({ from: Math.max(Math.floor(((px - LEFT) / (width - 2 * LEFT)) * n), 0) }));
  plot.replaceChildren(svg);
  const caption = card.querySelector("figcaption");
  if (nodes.length) {
    caption.replaceChildren(element("b", {}, `${number(hops)} ${hops === 1 ? "hop" : "hops"}: `), `${nodes.map(number).slice(0, 24).join(" → ")}`,
      nodes.length > 24 ? " → …" : "", ". An arc is a read; the strip says how many hops every token is away, and a click starts there.");
  } else {
    caption.replaceChildren(element("b", {}, "No path. "), `What token ${number(state.from)} holds never reaches token ${number(state.to)}: it is read by no token on the way.`);
  }
  showSliders(card.querySelector("#path-sliders"), [
    slider("from", { low: 0, high: state.to - 1 }, state.from, (from) => choose({ from })),
    choices.to ? slider("to", choices.to, state.to, (to) => choose({ to })) : slider("to", { low: 1, high: n - 1 }, state.to, (to) => choose({ to })),
  ]);
}

/** Hops from every token to the chosen one, as colors, with a scale. */
function strip(svg, paths, x, n, width, at) {
  const most = Math.max(...paths.hops, 1), step = (width - 2 * LEFT) / n;
  let start = 0;
  for (let j = 1; j <= paths.hops.length; j++) {
    if (j < paths.hops.length && paths.hops[j] === paths.hops[start]) continue;
    const far = paths.hops[start];
    svg.append(shape("rect", { x: x(start) - step / 2, y: at - 12, width: step * (j - start) + 0.3, height: 14,
      fill: far < 0 ? css("--grid") : ramp(far / most) }));
    start = j;
  }
  svg.append(shape("text", { x: LEFT, y: at + 18 }, `hops to token ${number(paths.to)}: 0`));
  const right = LEFT + 100 + 7 * String(paths.to).length;
  for (let k = 0; k < 30; k++) svg.append(shape("rect", { x: right + 3 * k, y: at + 9, width: 3.3, height: 10, fill: ramp(k / 29) }));
  svg.append(shape("text", { x: right + 96, y: at + 18 }, `${number(most)}${[...paths.hops].some((far) => far < 0) ? ", gray: no path" : ""}`));
}

/** Nodes on the way, named where there is room. */
function dots(svg, nodes, x, line) {
  let edge = -Infinity;
  const ends = new Set([nodes[0], nodes.at(-1)]);
  const last = nodes.length ? x(nodes.at(-1)) : 0;
  for (const node of nodes) {
    const end = ends.has(node), half = 4 * number(node).length;
    if (nodes.length <= 200 || end) svg.append(shape("circle", { cx: x(node), cy: line, r: end ? 5 : 3.2, fill: end ? css("--accent") : css("--ink") }));
    const free = x(node) - half > edge && (node === nodes.at(-1) || x(node) + half < last - 4 * number(nodes.at(-1)).length - 4);
    if ((nodes.length <= MOST_NAMED || end) && (free || node === nodes[0] || node === nodes.at(-1))) {
      svg.append(shape("text", { x: x(node), y: line + 18, "text-anchor": "middle", class: end ? "strong" : "" }, number(node)));
      edge = x(node) + half + 4;
    }
  }
}
