// Who reads whom: rows are tokens, columns the positions that they read.
import { ask, bits, integers } from "./data.js";
import { canvas, css, element, entryColor, hover, number, shape } from "./draw.js";
import { choose, state } from "./state.js";

const FAINTEST = 0.4;
const MOST_LISTED = 12;

/** The answer with its matrices and arrays unpacked. */
export async function scene(pattern) {
  const answer = await ask("scene", { p: pattern, n: state.n });
  answer.ready ??= (async () => {
    const entries = {};
    for (const [name, text] of Object.entries(answer.entries)) entries[name] = await bits(text, answer.n);
    const stages = [];
    for (const stage of answer.stages) {
      const [slot, last, held] = await Promise.all([stage.slot, stage.last, stage.held].map(integers));
      stages.push({ ...stage, slot, last, held });
    }
    return { ...answer, entries, stages, reads: await integers(answer.reads) };
  })();
  return answer.ready;
}

/** The positions that a token reads, by what reads them. */
export function sources(shown, token) {
  const read = [];
  for (let j = 0; j < token; j++) {
    for (const [name, matrix] of Object.entries(shown.entries)) if (matrix.has(token, j)) read.push([j, name]);
  }
  return read;
}

/** A list of positions, shortened in the middle. */
export function listed(positions) {
  const texts = positions.map(number);
  return texts.length <= MOST_LISTED ? texts.join(", ") : `${texts.slice(0, 5).join(", ")}, …, ${texts.slice(-5).join(", ")}`;
}

export async function drawReads(card, pattern, current) {
  const shown = await scene(pattern);
  if (!current()) return;
  const plot = card.querySelector(".plot");
  const size = Math.min(plot.clientWidth || 440, 440), n = shown.n;
  const [picture, context] = canvas(size, size, `${pattern} on ${n} tokens: which positions each token reads`);
  paint(context, shown, picture.width, size);
  const box = element("div", { class: "stack" }, picture, marks(shown, size));
  plot.replaceChildren(box);
  const cell = (x, y) => [Math.floor((y / size) * n), Math.floor((x / size) * n)].map((v) => Math.min(Math.max(v, 0), n - 1));
  hover(picture, size, size, (x, y) => describe(shown, ...cell(x, y)), (x, y) => {
    const [i, j] = cell(x, y);
    if (j < i) choose({ to: i, from: j, t: i });
  });
  const names = Object.keys(shown.entries).map((name) => {
    const swatch = element("span");
    swatch.textContent = "■ ";
    swatch.style.color = entryColor(name);
    return element("span", {}, swatch, `${name}  `);
  });
  card.querySelector("figcaption").replaceChildren(
    "A row is a token, a column a position that it reads: ", ...names,
    element("b", {}, `Token ${number(state.to)} reads ${number(shown.reads[state.to])}: `),
    `${listed(sources(shown, state.to).map(([j]) => j))}. Click a cell to follow it in the other figures.`,
  );
}

function describe(shown, i, j) {
  if (j > i) return `token ${number(i)} comes before ${number(j)}: nothing reads the future`;
  const kind = Object.keys(shown.entries).find((name) => shown.entries[name].has(i, j));
  const what = i === j ? "is itself" : kind ? `is read by token ${number(i)} in ${kind}` : `is not read by token ${number(i)}`;
  return `position ${number(j)} ${what}\ntoken ${number(i)} reads ${number(shown.reads[i])} positions`;
}

/** Each pixel has the share of its cells that are entries; none fades away entirely. */
function paint(context, shown, pixels, size) {
  const n = shown.n, side = Math.min(n, pixels);
  const image = new ImageData(side, side);
  const cells = (n / side) ** 2;
  for (const [name, matrix] of Object.entries(shown.entries)) {
    const counts = new Uint16Array(side * side);
    for (let i = 0; i < n; i++) {
      const row = Math.floor((i * side) / n) * side;
      for (let byte = 0; byte * 8 < i; byte++) {
        const value = matrix.bytes[i * matrix.width + byte];
        for (let k = 0; value && k < 8; k++) if ((value >> (7 - k)) & 1) counts[row + Math.floor(((byte * 8 + k) * side) / n)]++;
      }
    }
    const color = entryColor(name).match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16));
    for (let at = 0; at < counts.length; at++) {
      if (counts[at]) image.data.set([...color, 255 * Math.max(FAINTEST, Math.min(1, counts[at] / cells))], 4 * at);
    }
  }
  const scratch = new OffscreenCanvas(side, side);
  scratch.getContext("2d").putImageData(image, 0, 0);
  context.fillStyle = css("--shade");
  context.beginPath();
  context.moveTo(0, 0);
  context.lineTo(size, size);
  context.lineTo(0, size);
  context.fill();
  context.imageSmoothingEnabled = side === pixels;
  context.drawImage(scratch, 0, 0, size, size);
}

/** The chosen tokens, on top of the picture. */
function marks(shown, size) {
  const cell = size / shown.n, svg = shape("svg", { viewBox: `0 0 ${size} ${size}`, "aria-hidden": "true" });
  const accent = css("--accent"), thick = Math.max(cell, 2);
  const line = (x, y, width, height) => svg.append(shape("rect", { x, y, width, height, fill: accent, opacity: 0.22 }));
  line(0, state.to * cell, (state.to + 1) * cell, thick);
  line(state.from * cell, state.from * cell, thick, size - state.from * cell);
  for (const [at, what, right] of [[state.to, "to", true], [state.from, "from", false]]) {
    const x = (at + 1) * cell + 6, y = Math.min(Math.max(at * cell + cell / 2 + 4, 12), size - 4);
    const fits = x < size - 70;
    svg.append(shape("text", { x: fits ? x : size - 4, y: fits ? y : Math.max(y - 8 - cell, 12), class: "strong", "text-anchor": fits ? "start" : "end" },
      `${what} ${number(at)}`));
    if (right && !fits) continue;
  }
  return svg;
}
