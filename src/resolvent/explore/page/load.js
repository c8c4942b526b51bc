// Load while copying: how many of n paths, from i to i + n, go through each node.
import { ask, EFFORTS, integers } from "./data.js";
import { colorOf, css, drawing, element, hover, number, shape } from "./draw.js";
import { state } from "./state.js";

const LEFT = 44, RIGHT = 12, HEIGHT = 240, TOP = 22, BOTTOM = 34;

/** The quick bounds, and then, where these do not meet, what a search finds; it may take long, and find nothing. */
export async function drawLoad(card, pattern, current) {
  const [first, ...later] = EFFORTS, exact = await drawn(card, pattern, current, first);
  for (const effort of exact || !current() ? [] : later) drawn(card, pattern, current, effort).catch(() => {});
}

async function drawn(card, pattern, current, effort) {
  const answer = await ask("load", { p: pattern, n: state.n, effort });
  answer.ready ??= answer.loads === null ? Promise.resolve(null) : integers(answer.loads);
  const loads = await answer.ready;
  if (current()) show(card, pattern, answer, loads);
  return answer.lower === answer.upper;
}

function show(card, pattern, answer, loads) {
  const plot = card.querySelector(".plot"), caption = card.querySelector("figcaption");
  if (loads === null) {
    plot.replaceChildren(element("p", {}, "Nothing to draw."));
    caption.replaceChildren(element("b", {}, `Congestion ${answer.text}. `), answer.note);
    return;
  }
  const width = plot.clientWidth || 600, n = state.n;
  const svg = drawing(width, HEIGHT, `${pattern}: paths through each of ${2 * n} nodes when ${n} tokens are copied, at most ${answer.upper}`);
  const top = Math.max(answer.upper, 1), x = (node) => LEFT + ((width - LEFT - RIGHT) * node) / (2 * n);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / top;
  svg.append(shape("path", { d: outline(loads, x, y, width), fill: colorOf(pattern), opacity: 0.85 }));
  const line = (x1, y1, x2, y2, more = {}) => svg.append(shape("line", { x1, y1, x2, y2, stroke: css("--ink"), ...more }));
  line(LEFT, y(0), width - RIGHT, y(0), { opacity: 0.4 });
  line(x(n), TOP, x(n), y(0), { opacity: 0.4 });
  line(LEFT, y(answer.lower), width - RIGHT, y(answer.lower), { "stroke-dasharray": "5 4" });
  const text = (tx, ty, content, anchor = "middle", kind = "") => svg.append(shape("text", { x: tx, y: ty, "text-anchor": anchor, class: kind }, content));
  text(LEFT, y(answer.lower) - 6, `no routing has less than ${number(answer.lower)}`, "start", "strong");
  text(LEFT - 6, y(0) + 4, "0", "end");
  if (y(0) - y(top) > 20) text(LEFT - 6, y(top) + 4, number(top), "end");
  text((LEFT + x(n)) / 2, HEIGHT - 16, `tokens 0 … ${number(n - 1)}`);
  text((x(n) + width - RIGHT) / 2, HEIGHT - 16, `their copies ${number(n)} … ${number(2 * n - 1)}`);
  hover(svg, width, HEIGHT, (px) => {
    const node = Math.floor(((px - LEFT) / (width - LEFT - RIGHT)) * 2 * n);
    return node < 0 || node >= 2 * n ? "" : `${number(loads[node])} of ${number(n)} paths go through node ${number(node)}`;
  });
  plot.replaceChildren(svg);
  caption.replaceChildren(element("b", {}, `Congestion ${answer.text}: `),
    `so many tokens share one state when ${number(n)} tokens are copied (${answer.note}). Peaks are where information squeezes through.`);
}

/** Bars as one outline; where there are more nodes than pixels, the highest of each pixel. */
function outline(loads, x, y, width) {
  const pixels = Math.max(1, Math.floor(loads.length / width)), points = [`M${x(0)} ${y(0)}`];
  for (let node = 0; node < loads.length; node += pixels) {
    const high = y(Math.max(...loads.subarray(node, node + pixels)));
    points.push(`L${x(node)} ${high}L${x(Math.min(node + pixels, loads.length))} ${high}`);
  }
  return `${points.join("")}L${x(loads.length)} ${y(0)}Z`;
}
