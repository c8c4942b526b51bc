// The library's answers: from the server, or from the file itself where it was exported.

const embedded = document.getElementById("embedded");
export const exported = embedded ? JSON.parse(embedded.textContent) : null;
const answers = new Map();
const MOST_KEPT = 60;

export class Refused extends Error {}

const addressOf = (name, question) => `${name}?${new URLSearchParams(question)}`;

/** The answer to a question; asked once, kept while it is recent. */
export function ask(name, question = {}) {
  const address = addressOf(name, question);
  if (!answers.has(address)) {
    const answer = exported ? fromFile(address) : fromServer(address);
    answers.set(address, answer);
    answer.catch(() => answers.delete(address));
    if (answers.size > MOST_KEPT) answers.delete(answers.keys().next().value);
  }
  return answers.get(address);
}

/** Whether the answer is here, or on its way. */
export const known = (name, question) => exported !== null || answers.has(addressOf(name, question));

/** How hard the library looks for routings: the page shows what it finds at once, and then what a search finds. */
export const EFFORTS = exported ? ["search"] : ["quick", "search"];

async function fromServer(address) {
  let response;
  try {
    response = await fetch(`/api/${address}`);
  } catch {
    throw new Refused("The server does not answer: is 'resolvent explore' still running?");
  }
  const content = await response.json();
  if (!response.ok) throw new Refused(content.error);
  return content;
}

async function fromFile(address) {
  if (!(address in exported.answers)) {
    throw new Refused("This file does not hold the answer: run 'resolvent explore' for other patterns and lengths.");
  }
  return exported.answers[address];
}

async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Integers that the server packed. */
export async function integers(text) {
  return new Int32Array(await inflated(text));
}

/** A matrix of bits that the server packed; `has(row, column)` looks one up. */
export async function bits(text, n) {
  const bytes = new Uint8Array(await inflated(text));
  const width = Math.ceil(n / 8);
  return { bytes, width, has: (row, column) => ((bytes[row * width + (column >> 3)] >> (7 - (column & 7))) & 1) === 1 };
}
