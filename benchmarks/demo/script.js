/* What a visitor sees and does; model.js comes before it. */

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

const colour = (thing, shade = 1) => `rgb(${known.colours[thing].map((each) => Math.round(each * shade)).join(" ")})`;
const [columnOf, rowOf] = [(cell) => cell % COLUMNS, (cell) => Math.floor(cell / COLUMNS)];
const cellAt = (x, y) => (x >= 0 && y >= 0 && x < COLUMNS && y < ROWS ? Math.floor(y) * COLUMNS + Math.floor(x) : -1);
const rangeOf = (steps) => [Math.min(...steps.filter(isFinite)), Math.max(...steps.filter(isFinite))];
const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/** A picture of a state with pieces that can be moved. */
class Board {
  /** whose: "" or "Goal: ", before names of pieces; whenSet is called with the state that a visitor sets. */
  constructor(element, whose, whenSet) {
    Object.assign(this, { element, whose, whenSet, state: null, held: null, steps: null });
    this.canvas = element.appendChild(document.createElement("canvas"));
    this.agent = this.movable("agent", "Agent");
    this.blocks = Array.from(blocksOf(0), () => this.movable("block", "Block"));
    this.doors = known.doors.map((cells, door) => cells.map((cell) => this.door(door, cell)));
    new ResizeObserver(() => this.draw()).observe(element);
  }

  piece(kind, name) {
    const piece = this.element.appendChild(document.createElement("button"));
    Object.assign(piece, { type: "button", className: `piece ${kind}`, name });
    return piece;
  }

  movable(kind, name) {
    const piece = this.piece(kind, name);
    piece.style.setProperty("--colour", colour(kind));
    piece.addEventListener("pointerdown", (event) => this.drag(piece, event));
    piece.addEventListener("keydown", (event) => this.nudge(piece, event));
    return piece;
  }

  door(door, cell) {
    const piece = this.piece("door", known.doors.length > 1 ? `Door ${door + 1}` : "Door");
    this.move(piece, columnOf(cell), rowOf(cell));
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
    const cells = Array.from(blocksOf(state)); // in any order: blocks that stayed keep their pieces
    const stay = this.blocks.filter((block) => cells.includes(block.cell));
    const left = cells.filter((cell) => !stay.some((block) => block.cell === cell));
    for (const block of this.blocks) this.place(block, stay.includes(block) ? block.cell : left.pop());
    this.doors.forEach((pieces, door) => {
      const how = (arrays.opened[state] >> door) & 1 ? "open" : "shut";
      for (const piece of pieces) {
        piece.style.setProperty("--colour", colour(`door ${how}`));
        piece.ariaLabel = `${this.whose}${piece.name}, ${how}`;
      }
    });
  }

  place(piece, cell) {
    piece.cell = cell;
    if (piece !== this.held) this.move(piece, columnOf(cell), rowOf(cell));
    piece.ariaLabel = `${this.whose}${piece.name}, row ${rowOf(cell) + 1}, column ${columnOf(cell) + 1}`;
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

  refuse(piece, why) {
    say(why, "refused");
    piece.animate({ translate: ["0", "-8%", "8%", "-8%", "0"] }, 300);
    piece.animate({ outline: ["4px solid #d6302a", "4px solid #d6302a", "4px solid #d6302a00"] }, 900);
  }

  drag(piece, { button, pointerId }) {
    if (button !== 0 || this.held) return;
    this.held = piece;
    piece.classList.add("held");
    this.draw();
    const listening = new AbortController();
    const on = (type, listener) => {
      const own = (event) => event.pointerId === pointerId && listener(event);
      document.addEventListener(type, own, { signal: listening.signal });
    };
    const follow = ({ clientX, clientY }) => {
      const box = this.element.getBoundingClientRect();
      const [x, y] = [((clientX - box.left) / box.width) * COLUMNS, ((clientY - box.top) / box.height) * ROWS];
      this.move(piece, x - 0.5, y - 0.5);
      return cellAt(x, y);
    };
    const drop = (cell) => {
      listening.abort();
      this.held = null;
      piece.classList.remove("held");
      this.place(piece, piece.cell);
      if (cell !== piece.cell) this.set(piece, cell);
      this.draw();
    };
    on("pointermove", follow);
    on("pointerup", (event) => drop(follow(event)));
    on("pointercancel", () => drop(piece.cell));
  }

  /** Moves a piece to the next cell in the direction of an arrow key where it can be. */
  nudge(piece, event) {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const [right, down] = ARROWS[event.key];
    let [x, y, cell] = [columnOf(piece.cell), rowOf(piece.cell), -1];
    do {
      [x, y] = [x + right, y + down];
      cell = cellAt(x, y);
    } while (cell >= 0 && this.moved(piece, cell) < 0);
    this.set(piece, cell);
  }

  draw() {
    const size = (this.element.clientWidth / COLUMNS) * devicePixelRatio;
    [this.canvas.width, this.canvas.height] = [size * COLUMNS, size * ROWS];
    const brush = this.canvas.getContext("2d");
    const box = (style, ...sides) => {
      brush.fillStyle = style;
      brush.fillRect(...sides);
    };
    const [nearest, farthest] = rangeOf(this.steps ?? []);
    const line = devicePixelRatio / size;
    for (let cell = 0; cell < ROWS * COLUMNS; cell++) {
      brush.setTransform(size, 0, 0, size, columnOf(cell) * size, rowOf(cell) * size); // a cell has the sides 1
      const thing = known.things[known.rows[rowOf(cell)][columnOf(cell)]];
      box(colour(thing.startsWith("switch") ? "floor" : thing), 0, 0, 1, 1);
      if (thing === "wall") continue;
      const steps = this.steps ? this.steps[cell] : NaN;
      const far = Math.min((steps - nearest) / Math.max(farthest - nearest, 1), 1);
      if (!isNaN(steps)) box(`rgb(0 116 128 / ${0.85 - 0.8 * far})`, 0, 0, 1, 1); // as the legend in style.css
      box("rgb(0 0 0 / .13)", 0, 0, 1, line);
      box("rgb(0 0 0 / .13)", 0, 0, line, 1);
      if (thing === "slippery") {
        box("rgb(255 255 255 / .22)", 0.2, 0.31, 0.4, 0.06);
        box("rgb(255 255 255 / .22)", 0.4, 0.63, 0.4, 0.06);
      } else if (thing.startsWith("switch")) {
        box(colour(thing, 0.72), 0.12, 0.12, 0.76, 0.76);
        box(colour(thing), 0.18, 0.18, 0.64, 0.64);
        box(colour(thing, 0.72), 0.46, 0.3, 0.08, 0.4);
      }
      if (!isNaN(steps) && size >= 40 * devicePixelRatio) {
        const onDark = thing === "slippery" || (far < 0.4 && !thing.startsWith("switch"));
        brush.fillStyle = onDark ? "rgb(255 255 255 / .9)" : "rgb(0 0 0 / .65)";
        brush.font = "0.18px system-ui, sans-serif";
        brush.textAlign = "right";
        brush.fillText(isFinite(steps) ? Math.round(steps) : "∞", 0.95, 0.95);
      }
      if (this.held && this.moved(this.held, cell) >= 0) {
        brush.fillStyle = "#1b6ca8";
        brush.beginPath();
        brush.arc(0.5, 0.5, 0.09, 0, 7);
        brush.fill();
      }
    }
  }
}

/* What goes on. */

let world, goals; // the two boards
let start; // where the agent was when start or goal were set
let taken = 0; // steps since then
let expected = null; // steps from every state to the goal, by the best policy
let values = null; // steps to the goal from every cell, by the network
let mapped = ""; // for which goal, doors and blocks
let playing = true;

function begin(state, goal) {
  [start, taken] = [state, 0];
  say("");
  if (goal !== goals.state) {
    expected = null;
    inSlices("plan", plan(goal), (steps) => {
      expected = steps;
      showBest();
    });
  }
  goals.show(goal);
  showBest();
  arrive(state);
}

function arrive(state) {
  world.show(state);
  const there = state === goals.state;
  world.element.classList.toggle("reached", there);
  byId("steps").textContent = taken;
  if (there) say(taken === 0 ? "There already." : `Reached in ${taken} ${taken === 1 ? "step" : "steps"}.`, "reached");
  const shown = [goals.state, arrays.opened[state], ...blocksOf(state)].join();
  if (shown === mapped) return;
  mapped = shown;
  inSlices("map", valueMap(state, goals.state), (steps) => {
    values = steps;
    showValues();
  });
}

function step() {
  if (world.held || world.state === goals.state) return;
  taken++;
  if (taken === 200) say("Not there yet: it may walk in circles where its network is wrong.");
  arrive(next(world.state, greedy(world.state, goals.state), Math.random()));
}

function showBest() {
  byId("best").textContent = expected ? expected[start].toFixed(1) : "…";
}

function showValues() {
  const shown = byId("values").checked;
  byId("legend").hidden = !shown;
  if (values) [byId("nearest").textContent, byId("farthest").textContent] = rangeOf(values).map(Math.round);
  world.steps = shown ? values : null;
  world.draw();
}

function say(text, kind = "") {
  byId("note").textContent = text;
  byId("note").className = kind;
}

async function main() {
  await unpack();
  numberStates();
  document.body.classList.toggle("narrow", COLUMNS <= 6);
  for (const [name, value] of Object.entries({ columns: COLUMNS, rows: ROWS, floor: colour("floor") })) {
    document.body.style.setProperty(`--${name}`, value);
  }
  const anyState = () => Math.floor(Math.random() * countStates());
  const [left, right] = document.querySelectorAll(".board");
  world = new Board(left, "", (state) => begin(state, goals.state));
  goals = new Board(right, "Goal: ", (state) => begin(world.state, state));
  begin(anyState(), anyState());
  goals.draw();
  showValues();
  byId("random").addEventListener("click", () => begin(world.state, anyState()));
  byId("step").addEventListener("click", step);
  byId("values").addEventListener("change", showValues);
  byId("play").addEventListener("click", () => {
    playing = !playing;
    byId("play").textContent = playing ? "Pause" : "Play";
  });
  const pace = () => 2 ** byId("speed").valueAsNumber;
  byId("speed").addEventListener("input", () => (byId("speed").ariaValueText = `${pace()} steps a second`));
  const tick = () => {
    if (playing) step();
    setTimeout(tick, 1000 / pace());
  };
  setTimeout(tick, 1000 / pace());
  requestAnimationFrame(() => performance.mark("drawn"));
}

main().catch((error) => say(`The page does not work in this browser: ${error.message}`, "refused"));
