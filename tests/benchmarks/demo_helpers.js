/* What test_demo.py does in the page. */

const centre = (board, cell) => {
  const box = board.element.getBoundingClientRect();
  const [x, y] = [(cell % COLUMNS) + 0.5, Math.floor(cell / COLUMNS) + 0.5];
  return { clientX: box.left + (x / COLUMNS) * box.width, clientY: box.top + (y / ROWS) * box.height };
};
const drag = (board, cell, there) => {
  board.element.scrollIntoView();
  const { clientX, clientY } = centre(board, cell);
  const piece = document.elementFromPoint(clientX, clientY);
  const shared = { bubbles: true, cancelable: true, isPrimary: true, pointerId: 7, button: 0 };
  const fire = (type, where) => piece.dispatchEvent(new PointerEvent(type, { ...shared, ...centre(board, where) }));
  fire("pointerdown", cell);
  fire("pointermove", there);
  fire("pointerup", there);
  if (cell === there) piece.click();
};

/** Whether pieces are drawn where they are. */
const isInPlace = (board) =>
  [board.agent, ...board.blocks].every(({ cell, style }) => {
    const [x, y] = ["--x", "--y"].map((name) => Number(style.getPropertyValue(name)));
    return cellAt(x, y) === cell && Number.isInteger(x) && Number.isInteger(y);
  });

/** Sets a goal and returns what was set. */
const setByMouse = (state) => {
  drag(goals, goals.agent.cell, 0); // out of the way
  blocksOf(state).forEach((cell, i) => drag(goals, blocksOf(goals.state)[i], cell));
  const [door] = known.doors[0];
  if (arrays.opened[goals.state] !== arrays.opened[state]) drag(goals, door, door);
  drag(goals, goals.agent.cell, arrays.agent[state]);
  return goals.state;
};

/** A state, and a goal that the agent reaches from it in one step. */
const oneStepApart = () => {
  for (let state = 0; state < countStates(); state++) {
    for (let goal = 0; goal < countStates(); goal++) {
      if (goal !== state && next(state, greedy(state, goal), 0.99) === goal && !arrays.slips[state]) return [state, goal];
    }
  }
};

const all = (job) => {
  for (;;) {
    const { done, value } = job.next();
    if (done) return Array.from(value);
  }
};

/** Calls back when the first picture is there, and pauses; pieces move at once. */
const whenDrawn = (callback) => {
  if (!performance.getEntriesByName("drawn").length) return setTimeout(whenDrawn, 9, callback);
  byId("play").click();
  document.head.insertAdjacentHTML("beforeend", "<style>.piece { transition: none !important }</style>");
  callback();
};

/** Calls back with what the page says of the best policy, after the start was set twice, and a step. */
const whenPlanned = (state, goal, callback) => {
  begin(state, goal);
  begin(state, goal);
  step();
  const wait = () => (byId("best").textContent === "…" ? setTimeout(wait, 9) : callback(byId("best").textContent));
  wait();
};
