// The cache over time: a bar for each position, in its slot, from the token after it to the last that reads it.
import { canvas, css, element, hover, inkOn, number, ramp, shape, showSliders, slider } from "./draw.js";
import { listed, scene, sources } from "./reads.js";
import { choose, focused, state } from "./state.js";

const HEIGHT = 230, LEFT = 44, BOTTOM = 30, MOST_BOXES = 64, SECONDS = 9;
let playing = null;

export async function drawCache(card, pattern, current) {
  const shown = await scene(pattern);
  if (!current()) return;
  const plot = card.querySelector(".plot"), width = plot.clientWidth || 600;
  const total = shown.stages.reduce((sum, stage) => sum + stage.slots, 0);
  const slots = total === 1 ? "1 slot" : `${number(total)} slots`;
  const key = [pattern, shown.n, width, document.documentElement.dataset.theme].join();
  if (plot.dataset.key !== key) {
    plot.replaceChildren(...shown.stages.map((stage) => bars(shown, stage, width, HEIGHT / shown.stages.length, pattern)),
      element("div", { class: "slots" }));
    plot.dataset.key = key;
  }
  for (const cursor of plot.querySelectorAll(".cursor")) moveCursor(cursor, shown.n, width);
  plot.querySelector(".slots").replaceChildren(...boxes(shown));
  const reading = sources(shown, state.t).map(([j]) => j);
  card.querySelector("figcaption").replaceChildren(
    `A bar is a position, in its slot, from the token after it to its last reader; a slot that is free is used again. `,
    element("b", {}, `Token ${number(state.t)} is decoded with ${slots}`),
    `${reading.length ? ` and reads ${listed(reading)} (outlined below)` : ", and reads none"}.`,
  );
  const play = element("button", { type: "button", id: "play", onclick: toggle }, playing ? "❚❚ Pause" : "▶ Decode");
  const row = card.querySelector("#cache-sliders");
  showSliders(row, [slider("token", { low: 0, high: shown.n - 1 }, state.t, (t) => choose({ t }))]);
  const before = row.querySelector("#play");
  if (before) before.textContent = play.textContent;
  else row.prepend(play);
}

function bars(shown, stage, width, height, pattern) {
  const n = shown.n, wide = width - LEFT - 4, tall = height - BOTTOM, rows = Math.max(stage.slots, 1);
  const text = `${pattern}: ${number(stage.slots)} cache slots ${stage.name} while ${number(n)} tokens are decoded`;
  const [picture, context] = canvas(width, height, text);
  const x = (t) => LEFT + (wide * t) / n, y = (slot) => (tall * slot) / rows, thick = tall / rows;
  context.fillStyle = css("--shade");
  context.fillRect(LEFT, 0, wide, tall);
  for (let j = 0; j < n - 1; j++) {
    if (stage.slot[j] < 0 || stage.last[j] <= j || stage.slot[j] >= rows) continue;
    context.fillStyle = ramp(j / n);
    const gap = thick > 4 ? 1 : 0;
    context.fillRect(x(j + 1), y(stage.slot[j]) + gap / 2, x(Math.min(stage.last[j] + 1, n)) - x(j + 1) - (wide / n > 4 ? 1 : 0), thick - gap);
  }
  context.fillStyle = css("--pale");
  context.font = "11px system-ui, sans-serif";
  const ticks = [0, 0.25, 0.5, 0.75].map((share) => Math.round(share * n)).concat(n - 1);
  for (const t of ticks) {
    context.textAlign = t === 0 ? "left" : t === n - 1 ? "right" : "center";
    context.fillText(number(t), x(t + (t === n - 1 ? 1 : 0)), tall + 13);
  }
  context.textAlign = "center";
  context.fillText("token being decoded", LEFT + wide / 2, tall + 26);
  context.textAlign = "right";
  context.fillText("slot 0", LEFT - 5, Math.max(Math.min(thick / 2 + 4, 14), 9));
  if (rows > 1) context.fillText(number(rows - 1), LEFT - 5, tall - Math.min(thick / 2 - 4, 6));
  const over = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  over.append(shape("rect", { class: "cursor", y: 0, height: tall, fill: css("--card"), opacity: 0.6 }));
  over.append(shape("line", { class: "cursor", y1: 0, y2: tall, stroke: css("--accent"), "stroke-width": 2 }));
  hover(picture, width, height, (px, py) => {
    const t = Math.floor(((px - LEFT) / wide) * n), slot = Math.floor((py / tall) * rows);
    if (t < 0 || t >= n || slot >= rows) return "";
    const j = holder(stage, t, slot);
    return j < 0 ? `slot ${number(slot)} is free when token ${number(t)} is decoded`
      : `slot ${number(slot)} holds position ${number(j)} when token ${number(t)} is decoded\nread for the last time by ${stage.last[j] >= n ? "a later token" : `token ${number(stage.last[j])}`}`;
  }, (px) => choose({ t: Math.floor(((px - LEFT) / wide) * n) }));
  return element("div", { class: "stack" }, picture, over);
}

/** The position that a slot holds when a token is decoded, -1 if none. */
function holder(stage, t, slot) {
  for (let j = t - 1; j >= 0; j--) if (stage.slot[j] === slot && stage.last[j] >= t) return j;
  return -1;
}

function moveCursor(cursor, n, width) {
  const x = LEFT + ((width - LEFT - 4) * (state.t + 1)) / n;
  if (cursor.tagName === "line") {
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  } else {
    cursor.setAttribute("x", x);
    cursor.setAttribute("width", Math.max(width - 4 - x, 0));
  }
}

/** What is in each slot now; those that are read are outlined. */
function boxes(shown) {
  const reading = new Set(sources(shown, state.t).map(([j]) => j)), made = [];
  for (const stage of shown.stages) {
    if (stage.slots > MOST_BOXES) {
      made.push(element("b", {}, `${stage.name} ${number(stage.held[state.t])} of ${number(stage.slots)} slots are in use.`));
      continue;
    }
    const held = new Array(stage.slots).fill(-1);
    for (let j = 0; j < state.t; j++) if (stage.slot[j] >= 0 && stage.last[j] >= state.t) held[stage.slot[j]] = j;
    if (stage.name) made.push(element("b", {}, `${stage.name}: `));
    for (const j of held) made.push(box(j, shown.n, reading.has(j)));
  }
  return made;
}

function box(j, n, read) {
  const made = element("span", { class: `${j < 0 ? "empty" : ""} ${read ? "read" : ""}` }, j < 0 ? "·" : number(j));
  if (j >= 0) {
    made.style.background = ramp(j / n);
    made.style.color = inkOn(j / n);
  }
  return made;
}

/** Decode token after token, the whole sequence in some seconds; from its start again when it has ended. */
export function toggle() {
  if (playing) {
    cancelAnimationFrame(playing);
    playing = null;
    choose({});
    return;
  }
  const pattern = focused(), n = state.n;
  let before = null, place = state.t >= n - 1 ? 0 : state.t;
  const step = (now) => {
    if (focused() !== pattern || state.n !== n) {
      playing = null;
      choose({});
      return;
    }
    place += before === null ? 0 : ((now - before) / 1000) * (n / SECONDS);
    before = now;
    playing = place < n - 1 ? requestAnimationFrame(step) : null;
    if (Math.floor(place) !== state.t || !playing) choose({ t: Math.min(Math.floor(place), n - 1) });
  };
  playing = requestAnimationFrame(step);
  choose({ t: Math.floor(place) });
}
