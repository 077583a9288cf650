"use strict";

/* The world and the network, computed from what page.py wrote into the page: what is known by name, and arrays. */

const byId = (id) => document.getElementById(id);
const known = JSON.parse(byId("known").textContent);
const arrays = {};
const [ROWS, COLUMNS, ACTIONS] = [known.rows.length, known.rows[0].length, 5];

async function unpack() {
  const text = atob(byId("arrays").textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = await new Response(stream).arrayBuffer();
  const types = { uint16: Uint16Array, uint32: Uint32Array, float16: Uint16Array, float32: Float32Array };
  for (const [name, [type, start, length]] of Object.entries(known.arrays)) {
    const array = new types[type](bytes.slice(start, start + length * types[type].BYTES_PER_ELEMENT));
    arrays[name] = type === "float16" ? fromHalves(array) : array;
  }
}

function fromHalves(halves) {
  // The first six bits are sign and exponent. The smallest exponent stands for the same as the one after it, without the leading 1.
  const scale = Float64Array.from({ length: 64 }, (_, top) => (top & 32 ? -1 : 1) * 2 ** (Math.max(top & 31, 1) - 25));
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    numbers[i] = scale[halves[i] >> 10] * ((halves[i] & 1023) + (halves[i] & 0x7c00 ? 1024 : 0));
  }
  return numbers;
}

/* States: where the agent is, where the blocks are, and which doors are open (bit d: door d). */

const numbers = new Map(); // of the states with blocks in certain cells, by open doors and the agent's cell
const keyOf = (blocks) => Array.from(blocks).sort((a, b) => a - b).join();
const find = (agent, blocks, opened) => (agent < 0 ? -1 : (numbers.get(keyOf(blocks))?.[opened * ROWS * COLUMNS + agent] ?? -1));
const countStates = () => arrays.agent.length;

function blocksOf(state) {
  const count = arrays.blocks.length / countStates();
  return arrays.blocks.subarray(state * count, (state + 1) * count);
}

function numberStates() {
  for (let state = 0; state < countStates(); state++) {
    const key = keyOf(blocksOf(state));
    if (!numbers.has(key)) numbers.set(key, new Int32Array(known.closing.length * ROWS * COLUMNS).fill(-1));
    numbers.get(key)[arrays.opened[state] * ROWS * COLUMNS + arrays.agent[state]] = state;
  }
}

/** As TwoRoomsMDP.step_one: a uniform number decides about slipping, and what remains of it about doors that close. */
function next(state, action, uniform) {
  if (arrays.slips[state]) {
    if (uniform < known.slip) {
      const scaled = (uniform / known.slip) * 4;
      action = Math.floor(scaled);
      uniform = scaled - action;
    } else {
      uniform = (uniform - known.slip) / (1 - known.slip);
    }
  }
  const arrived = arrays.next_state[state * ACTIONS + action];
  let bound = 0;
  for (let doors = 1; doors < known.closing.length; doors++) {
    bound += known.closing[doors];
    if (uniform < bound) return arrays.closed_state[arrived * known.closing.length + doors];
  }
  return arrived;
}

/** Expected steps of the best policy from every state, as gym_twoRooms.oracle.expected_steps; it yields between sweeps. */
function* plan(goal) {
  const sets = known.closing.length;
  let [steps, better] = [new Float64Array(countStates()), new Float64Array(countStates())];
  const settled = new Float64Array(countStates()); // of a state in which doors may close yet
  for (let change = 1; change > 1e-6; [steps, better] = [better, steps]) {
    for (let state = 0; state < settled.length; state++) {
      settled[state] = 0;
      for (let doors = 0; doors < sets; doors++) {
        settled[state] += known.closing[doors] * steps[arrays.closed_state[state * sets + doors]];
      }
    }
    change = 0;
    for (let state = 0; state < settled.length; state++) {
      const after = (action) => settled[arrays.next_state[state * ACTIONS + action]];
      let ahead = Math.min(after(0), after(1), after(2), after(3), after(4));
      if (arrays.slips[state]) {
        ahead = (1 - known.slip) * ahead + (known.slip / 4) * (after(0) + after(1) + after(2) + after(3));
      }
      better[state] = state === goal ? 0 : 1 + ahead;
      change = Math.max(change, Math.abs(better[state] - steps[state]));
    }
    yield;
  }
  return steps;
}

/* The network. */

const activate = { none: (x) => x, relu: (x) => Math.max(x, 0), gelu: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)) };

function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let [term, sum] = [x, x]; // a series of terms with one sign
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

function affine(name, input) {
  const [weight, bias] = [arrays[`${name}.weight`], arrays[`${name}.bias`]];
  const output = new Float64Array(bias.length);
  const width = input.length;
  for (let row = 0, start = 0; row < output.length; row++, start += width) {
    let [even, odd] = [bias[row], 0]; // two sums are faster than one
    let column = 0;
    for (; column < width - 1; column += 2) {
      even += weight[start + column] * input[column];
      odd += weight[start + column + 1] * input[column + 1];
    }
    if (column < width) even += weight[start + column] * input[column];
    output[row] = even + odd;
  }
  return output;
}

/** What the agent sees: an RGB colour for each cell. */
function picture(state) {
  const things = Array.from(known.rows.join(""), (symbol) => known.things[symbol]);
  known.doors.forEach((cells, door) => {
    if ((arrays.opened[state] >> door) & 1) for (const cell of cells) things[cell] = "door open";
  });
  for (const cell of blocksOf(state)) things[cell] = "block";
  things[arrays.agent[state]] = "agent";
  return things.flatMap((thing) => known.colours[thing]);
}

const embeddings = { state: new Map(), goal: new Map() };
const MOST_EMBEDDINGS = 6000;

function embedding(kind, state) {
  const cache = embeddings[kind];
  if (!cache.has(state)) {
    if (cache.size === MOST_EMBEDDINGS) cache.clear();
    let features = Float64Array.from(picture(state), (c, i) => (c / known.divisor - arrays.mean[i]) * arrays.scale[i]);
    known.activations.forEach((name, layer) => (features = affine(`layer${layer}`, features).map(activate[name])));
    cache.set(state, Float32Array.from(affine(kind, features)));
  }
  return cache.get(state);
}

/** Q(s, a, g) of all actions. */
function actionValues(state, goal) {
  const [points, target] = [embedding("state", state), embedding("goal", goal)];
  if (known.head === "bilinear") return affine("head", points.map((each, i) => each * target[i]));
  const [scale, offset] = arrays.head;
  return Float64Array.from({ length: ACTIONS }, (_, action) => {
    let squared = 0;
    for (let i = 0; i < target.length; i++) squared += (points[action * target.length + i] - target[i]) ** 2;
    return offset - scale * Math.log1p(squared);
  });
}

function greedy(state, goal) {
  const values = actionValues(state, goal);
  return values.indexOf(Math.max(...values));
}

/** The number of steps to the goal that is worth as much as the best action. */
function stepsByValue(state, goal) {
  const never = known.step_reward / (1 - known.gamma);
  const share = (Math.max(...actionValues(state, goal)) - never) / (known.goal_reward - never);
  return state === goal ? 0 : share > 0 ? Math.max(1, 1 + Math.log(share) / Math.log(known.gamma)) : Infinity;
}

/** Steps by value for the agent in each cell, NaN where it cannot be; it yields between cells. */
function* valueMap(state, goal) {
  const steps = new Float64Array(ROWS * COLUMNS).fill(NaN);
  for (let cell = 0; cell < steps.length; cell++) {
    const there = find(cell, blocksOf(state), arrays.opened[state]);
    if (there >= 0) steps[cell] = stepsByValue(there, goal);
    yield;
  }
  return steps;
}
