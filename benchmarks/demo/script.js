"use strict";

/* The world and the network that Python wrote: what is known by name, and arrays. */

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

/** Runs a generator in slices of a few milliseconds. Nothing comes of it if another of that name is started meanwhile. */
const started = {};

async function inSlices(name, generator, whenDone) {
  started[name] = generator;
  for (let result = {}; !result.done; ) {
    await new Promise((resolve) => setTimeout(resolve));
    const end = performance.now() + 8;
    while (!result.done && performance.now() < end) result = generator.next();
    if (started[name] !== generator) return;
    if (result.done) whenDone(result.value);
  }
}

/* A picture of a state with pieces that can be moved. */

const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

class Board {
  /** whose: "" or "goal's ", for names of pieces; whenSet is called with the state that a visitor sets. */
  constructor(element, whose, whenSet) {
    Object.assign(this, { element, whose, whenSet, steps: null, held: null });
    this.canvas = element.appendChild(document.createElement("canvas"));
    this.agent = this.piece("agent", "Agent");
    this.blocks = Array.from(blocksOf(0), () => this.piece("block", "Block"));
    this.doors = known.doors.map((cells, door) => cells.map((cell) => this.door(door, cell)));
    new ResizeObserver(() => this.draw()).observe(element);
  }

  piece(kind, name) {
    const piece = this.element.appendChild(document.createElement("button"));
    piece.type = "button";
    piece.className = `piece ${kind}`;
    piece.name = name;
    if (kind !== "door") {
      piece.style.setProperty("--colour", colour(kind));
      piece.addEventListener("pointerdown", (event) => this.drag(piece, event));
      piece.addEventListener("keydown", (event) => this.nudge(piece, event));
    }
    return piece;
  }

  door(door, cell) {
    const piece = this.piece("door", known.doors.length > 1 ? `Door ${door + 1}` : "Door");
    this.place(piece, cell);
    piece.style.setProperty("--frame", colour("door shut", 0.72));
    piece.style.setProperty("--switch", colour(`switch ${"STUV"["DEFG".indexOf(known.rows.join("")[cell])]}`));
    piece.addEventListener("click", () => {
      const state = find(arrays.agent[this.state], blocksOf(this.state), arrays.opened[this.state] ^ (1 << door));
      if (state < 0) this.refuse(piece, "A door cannot shut while the agent stands in it.");
      else this.whenSet(state);
    });
    return piece;
  }

  show(state) {
    this.state = state;
    this.place(this.agent, arrays.agent[state]);
    const cells = Array.from(blocksOf(state)); // ascending: those that did not move keep their pieces
    const stay = this.blocks.filter((block) => cells.includes(block.cell));
    const left = cells.filter((cell) => !stay.some((block) => block.cell === cell));
    for (const block of this.blocks) this.place(block, stay.includes(block) ? block.cell : left.pop());
    this.doors.forEach((pieces, door) => {
      const open = Boolean((arrays.opened[state] >> door) & 1);
      for (const piece of pieces) {
        piece.style.setProperty("--colour", colour(open ? "door open" : "door shut"));
        piece.setAttribute("aria-pressed", open);
        piece.setAttribute("aria-label", `${this.whose}${piece.name}, ${open ? "open" : "shut"}`);
      }
    });
  }

  place(piece, cell) {
    piece.cell = cell;
    if (piece !== this.held) this.move(piece, cell % COLUMNS, Math.floor(cell / COLUMNS));
    const where = `row ${Math.floor(cell / COLUMNS) + 1}, column ${(cell % COLUMNS) + 1}`;
    piece.setAttribute("aria-label", `${this.whose}${piece.name}, ${where}`);
  }

  move(piece, x, y) {
    piece.style.setProperty("--x", x);
    piece.style.setProperty("--y", y);
  }

  /** The state with a piece in another cell, -1 if there is none. */
  moved(piece, cell) {
    const blocks = this.blocks.map((block) => (block === piece ? cell : block.cell));
    return find(piece === this.agent ? cell : this.agent.cell, blocks, arrays.opened[this.state]);
  }

  set(piece, cell) {
    const state = this.moved(piece, cell);
    if (state >= 0) this.whenSet(state);
    else if (piece === this.agent) this.refuse(piece, "The agent cannot stand there.");
    else this.refuse(piece, "A block cannot be there: it touches no wall, door or edge.");
  }

  drag(piece, event) {
    if (event.button !== 0 || this.held) return;
    event.preventDefault();
    piece.focus({ focusVisible: false });
    this.held = piece;
    piece.classList.add("held");
    this.draw();
    const listening = new AbortController();
    const on = (type, listener) => document.addEventListener(type, listener, { signal: listening.signal });
    const follow = ({ clientX, clientY }) => {
      const box = this.element.getBoundingClientRect();
      const [x, y] = [((clientX - box.left) / box.width) * COLUMNS, ((clientY - box.top) / box.height) * ROWS];
      this.move(piece, x - 0.5, y - 0.5);
      const inside = x >= 0 && y >= 0 && x < COLUMNS && y < ROWS;
      return inside ? Math.floor(y) * COLUMNS + Math.floor(x) : -1;
    };
    const drop = (cell) => {
      listening.abort();
      this.held = null;
      piece.classList.remove("held");
      this.place(piece, piece.cell);
      if (cell !== piece.cell) this.set(piece, cell);
      this.draw();
    };
    on("pointermove", (moved) => moved.pointerId === event.pointerId && follow(moved));
    on("pointerup", (up) => up.pointerId === event.pointerId && drop(follow(up)));
    on("pointercancel", () => drop(piece.cell));
  }

  /** Moves a piece to the next cell in the direction of an arrow key where it can be. */
  nudge(piece, event) {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const [right, down] = ARROWS[event.key];
    let [x, y] = [piece.cell % COLUMNS, Math.floor(piece.cell / COLUMNS)];
    let cell = -1;
    do {
      [x, y] = [x + right, y + down];
      cell = x >= 0 && y >= 0 && x < COLUMNS && y < ROWS ? y * COLUMNS + x : -1;
    } while (cell >= 0 && this.moved(piece, cell) < 0);
    this.set(piece, cell);
  }

  refuse(piece, why) {
    say(why, "refused");
    piece.animate({ translate: ["0", "-8%", "8%", "-8%", "0"] }, 300);
    piece.animate({ boxShadow: ["0 0 0 4px #d6302a", "0 0 0 4px #d6302a", "0 0 0 4px transparent"] }, 900);
  }

  draw() {
    const size = (this.element.clientWidth / COLUMNS) * devicePixelRatio;
    [this.canvas.width, this.canvas.height] = [size * COLUMNS, size * ROWS];
    const brush = this.canvas.getContext("2d");
    const farthest = this.steps && farthestOf(this.steps);
    known.rows.join("").split("").forEach((symbol, cell) => {
      const [left, top] = [(cell % COLUMNS) * size, Math.floor(cell / COLUMNS) * size];
      const box = (style, x, y, width, height) => {
        brush.fillStyle = style;
        brush.fillRect(left + x * size, top + y * size, width * size, height * size);
      };
      const thing = known.things[symbol];
      box(colour(thing.startsWith("switch") ? "floor" : thing), 0, 0, 1, 1);
      if (thing === "wall") return;
      const line = devicePixelRatio / size;
      for (const [width, height] of [[1, line], [line, 1]]) box("rgb(0 0 0 / .13)", 0, 0, width, height);
      if (thing === "slippery") {
        for (const [x, y] of [[0.2, 0.31], [0.4, 0.63]]) box("rgb(255 255 255 / .22)", x, y, 0.4, 0.06);
      } else if (thing.startsWith("switch")) {
        box(colour(thing, 0.72), 0.12, 0.12, 0.76, 0.76);
        box(colour(thing), 0.18, 0.18, 0.64, 0.64);
        box(colour(thing, 0.72), 0.46, 0.3, 0.08, 0.4);
      }
      if (this.held && this.moved(this.held, cell) >= 0) {
        brush.fillStyle = "#1b6ca8";
        brush.beginPath();
        brush.arc(left + size / 2, top + size / 2, size * 0.09, 0, 7);
        brush.fill();
      }
      if (this.steps && !isNaN(this.steps[cell])) {
        const far = Math.min(this.steps[cell] / farthest, 1);
        box(`rgb(0 116 128 / ${0.85 - 0.8 * far})`, 0, 0, 1, 1);
        if (size < 40 * devicePixelRatio) return;
        brush.fillStyle = thing === "slippery" || far < 0.4 ? "rgb(255 255 255 / .9)" : "rgb(0 0 0 / .65)";
        brush.font = `${size * 0.18}px system-ui, sans-serif`;
        brush.textAlign = "right";
        brush.fillText(isFinite(this.steps[cell]) ? Math.round(this.steps[cell]) : "∞", left + size * 0.95, top + size * 0.95);
      }
    });
  }
}

const colour = (thing, shade = 1) => `rgb(${known.colours[thing].map((each) => Math.round(each * shade)).join(" ")})`;
const farthestOf = (steps) => Math.max(1, ...steps.filter(isFinite));

/* What goes on. */

let world, goals; // the two boards
let taken = 0; // steps since the start or the goal was set
let playing = true;
let expected = null; // steps from every state to the goal, by the best policy
let mapped = ""; // of what the value map is

function begin(state, goal) {
  const start = state;
  const newGoal = goal !== goals.state;
  taken = 0;
  say("");
  goals.show(goal);
  arrive(state);
  const tell = () => (byId("best").textContent = expected[start].toFixed(1));
  if (newGoal) {
    expected = null;
    byId("best").textContent = "…";
  }
  if (expected) tell();
  else inSlices("plan", plan(goal), (steps) => [expected = steps, tell()]);
}

function arrive(state) {
  world.show(state);
  const there = state === goals.state;
  world.element.classList.toggle("reached", there);
  byId("steps").textContent = taken;
  if (there) say(taken === 0 ? "There already." : `Reached in ${taken} ${taken === 1 ? "step" : "steps"}.`, "reached");
  const key = [goals.state, arrays.opened[state], ...blocksOf(state)].join();
  if (key !== mapped) {
    mapped = key;
    inSlices("map", valueMap(state, goals.state), (steps) => {
      valuesNow = steps;
      showValues();
    });
  }
}

let valuesNow = null;

function showValues() {
  const shown = byId("values").checked;
  byId("legend").hidden = !shown;
  world.steps = shown ? valuesNow : null;
  if (valuesNow) byId("farthest").textContent = Math.round(farthestOf(valuesNow));
  world.draw();
}

function step() {
  if (world.held || world.state === goals.state) return;
  taken++;
  arrive(next(world.state, greedy(world.state, goals.state), Math.random()));
}

function say(text, kind = "") {
  byId("note").textContent = text;
  byId("note").className = kind;
}

async function main() {
  await unpack();
  numberStates();
  document.body.classList.toggle("narrow", COLUMNS <= 6);
  for (const [name, value] of Object.entries({ "--columns": COLUMNS, "--rows": ROWS, "--floor": colour("floor") })) {
    document.body.style.setProperty(name, value);
  }
  const anyState = () => Math.floor(Math.random() * countStates());
  const [left, right] = document.querySelectorAll(".board");
  world = new Board(left, "", (state) => begin(state, goals.state));
  goals = new Board(right, "Goal: ", (state) => begin(world.state, state));
  begin(anyState(), anyState());
  goals.draw();
  showValues();
  byId("random").addEventListener("click", () => begin(world.state, anyState()));
  byId("play").addEventListener("click", () => {
    playing = !playing;
    byId("play").textContent = playing ? "Pause" : "Play";
  });
  byId("step").addEventListener("click", step);
  byId("values").addEventListener("change", showValues);
  const pace = () => 1000 / 2 ** byId("speed").valueAsNumber;
  const tick = () => {
    if (playing) step();
    setTimeout(tick, pace());
  };
  setTimeout(tick, pace());
  requestAnimationFrame(() => performance.mark("drawn"));
}

main().catch((error) => say(`The page does not work in this browser: ${error.message}`, "refused"));
