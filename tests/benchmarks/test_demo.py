import json
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from torch import nn

from benchmarks.demo import page as demo
from benchmarks.worlds import SettingError
from gym_twoRooms import NAMED_LAYOUTS, compile_layout
from gym_twoRooms.oracle import expected_steps
from sb3_manygoals import PAPER, ManyGoalsDQN
from tests.benchmarks.browser import HELPERS, chromium, emulate, opened, processor_seconds, requests
from tests.benchmarks.command_line import command

MDP = compile_layout(NAMED_LAYOUTS["small"])
WIDTH = MDP.layout.width
DOOR = "".join(MDP.layout.rows).index("D")


def model_of(**options):
    """Make a learner for the small map."""
    return ManyGoalsDQN(
        "CnnPolicy", gym.make("TwoRoomsSwitchSmall-v0"), seed=0, device="cpu", **options
    )


def folder_of(path, model=None, **settings):
    """Make a folder as a run of mastery leaves it."""
    path.mkdir()
    settings = {"env_id": "TwoRoomsSwitchSmall-v0", "map": None, "agent": "default"} | settings
    (path / "config.json").write_text(json.dumps({"settings": settings}))
    if model is not None:
        model.save(path / "model.zip")
    return path


@pytest.fixture(scope="module")
def model():
    """A learner that has learned a little."""
    return model_of(learning_starts=500, batch_size=32, goal_batch_size=32).learn(1_000)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """The page of a run, as the command writes it."""
    folder = folder_of(tmp_path_factory.mktemp("runs") / "run", model)
    done = command("demo", str(folder))
    assert (done.returncode, done.stdout) == (0, f"open {folder / 'demo.html'}\n"), done.stderr
    return folder / "demo.html"


@pytest.fixture(scope="module")
def browser():
    """The driver of a browser."""
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser, run):
    """A function that runs JavaScript in the page."""
    return opened(browser, run)


def values_of(model, states, goals):
    """Return the values of the network that acts, with its weights in half precision."""
    net = deepcopy(model.policy.q_net if model.policy.q_net_ema is None else model.policy.q_net_ema)
    for weights in net.parameters():
        weights.data = weights.data.half().float()
    with th.no_grad():
        return net(*(th.as_tensor(MDP.observe(numbers)) for numbers in (states, goals))).numpy()


@pytest.mark.extras
def test_it_needs_no_network_and_draws_within_a_second(browser, run):
    opened(browser, run)
    requests(browser)
    before = processor_seconds(browser)
    page = opened(browser, run)
    assert processor_seconds(browser) - before < 1.0
    assert requests(browser) == [run.as_uri()]
    assert "the block, click the door. One neural network pursues all 220 goals" in page(
        "return document.body.innerText"
    )
    emulate(browser, "dark", width=360, height=740, deviceScaleFactor=2, mobile=True)
    assert page("return [document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    assert page("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 30)"
    emulate(browser)
    assert browser.get_log("browser") == []


@pytest.mark.extras
@pytest.mark.parametrize("name", ["default", "paper"])
def test_actions_are_those_of_the_network(name, browser, run, model, tmp_path):
    if name == "paper":
        model = model_of(**PAPER)
        model.policy.fit_standardization(th.as_tensor(MDP.observations.copy()))
        # The weights become large beside the biases.
        model.policy.q_net.head.weight.data *= 50
        run = demo.write(folder_of(tmp_path / "run", model, agent=name))
    pairs = np.random.default_rng(0).integers(MDP.n_states, size=(10_000, 2))
    actions = np.array(
        opened(browser, run)("return arguments[0].map((pair) => greedy(...pair))", pairs.tolist())
    )
    states, goals = pairs.T
    values = values_of(model, states, goals)
    assert (
        values.max(axis=1) - values[np.arange(10_000), actions]
    ).max() < 1e-4 * -model.step_reward
    assert len(set(actions)) > 3
    unrounded = model.predict(
        {"observation": MDP.observe(states), "desired_goal": MDP.observe(goals)}, deterministic=True
    )[0]
    assert (unrounded == actions).mean() > 0.95


@pytest.mark.extras
def test_the_world_moves_as_it_does_in_python(page):
    rng = np.random.default_rng(0)
    columns = (
        rng.integers(220, size=10_000),
        rng.integers(5, size=10_000),
        rng.random(10_000) * rng.choice([0.02, 1], 10_000),
    )
    steps = list(zip(*(column.tolist() for column in columns), strict=True))
    moved = page("return arguments[0].map((step) => next(...step))", steps)
    assert moved == [MDP.step_one(state, action, lambda u=draw: u) for state, action, draw in steps]


@pytest.mark.extras
def test_steps_are_those_of_the_oracle_and_of_the_network(browser, page, model):
    goals = list(range(0, 220, 20))
    exact = expected_steps(MDP, goals)
    np.testing.assert_allclose(
        np.array(page("return arguments[0].map((goal) => all(plan(goal)))", goals)).T,
        exact,
        atol=1e-9,
    )
    for column, goal in enumerate(goals[:3]):
        assert (
            browser.execute_async_script(f"{HELPERS} whenPlanned(...arguments)", 7, goal)
            == f"{exact[7, column]:.1f}"
        )
    cells = np.array(
        page(
            "return all(valueMap(...arguments)).map((each) => isNaN(each) ? -1 : each)",
            17,
            goals[0],
        )
    )
    there = np.flatnonzero(
        (MDP.blocks == MDP.blocks[17]).all(axis=1)
        & (MDP.doors_open == MDP.doors_open[17]).all(axis=1)
    )
    assert np.flatnonzero(cells >= 0).tolist() == sorted(MDP.agent[there].tolist())
    there = there[there != goals[0]]
    # The page shows expected steps, which the discounted return of that many steps must match.
    paid = -0.1 * (1 - 0.99 ** (cells[MDP.agent[there]] - 1)) / (1 - 0.99)
    values = values_of(model, there, np.full(len(there), goals[0])).max(axis=1)
    np.testing.assert_allclose(paid, np.minimum(values, 0.0), atol=1e-4)


@pytest.mark.extras
def test_every_goal_can_be_set_by_mouse(page):
    assert page("return arguments[0].map(setByMouse)", list(range(220))) == list(range(220))


@pytest.mark.extras
def test_what_is_impossible_is_refused(page):
    shut = int(np.flatnonzero(~MDP.doors_open[:, 0])[0])
    within = int(np.flatnonzero(MDP.agent == DOOR)[0])
    agent = "The agent cannot stand there."
    block = "A block cannot be there: it touches no wall, door or edge."
    cases = [
        (f"drag(on, on.agent.cell, {cell})", shut, agent)
        for cell in (DOOR - 1, DOOR, int(MDP.blocks[shut, 0]), -WIDTH)
    ]
    cases += [("drag(on, on.blocks[0].cell, 0)", shut, block)]
    cases += [
        ("on.doors[0][0].click()", within, "A door cannot shut while the agent stands in it.")
    ]
    told = (
        "return [on.state, byId('note').textContent, "
        "on.element.getAnimations({ subtree: true }).length > 0, isInPlace(on)]"
    )
    for script, state, note in cases:
        for board in ("world", "goals"):
            assert page(f"const on = {board}; begin({state}, {state}); {script}; {told}") == [
                state,
                note,
                True,
                True,
            ]


@pytest.mark.extras
def test_a_visitor_sets_the_start_and_sees_the_agent_arrive(page):
    state, goal = page("return oneStepApart()")
    page(
        "begin(...arguments); Math.random = () => 0.99; byId('step').click()",
        (state + 9) % 220,
        goal,
    )
    told = (
        "; return [world.state, byId('steps').textContent, byId('note').textContent, "
        "world.element.className]"
    )
    # The second click finds the agent at the goal, where it stays.
    for before in ("begin(arguments[0], goals.state);", ""):
        arrived = page(f"{before} byId('step').click() {told}", state)
        assert arrived == [goal, "1", "Reached in 1 step.", "board reached"]
    free = 0 if MDP.agent[goal] else 1
    assert page(
        f"drag(world, world.agent.cell, {free}); return [world.agent.cell, goals.state, taken]"
    ) == [free, goal, 0]


@pytest.mark.extras
def test_the_keyboard_sets_a_goal(browser, page):
    from selenium.webdriver import ActionChains, Keys

    def press(*keys):
        """Press keys. Return the cells of agent and block in the goal, and if its door is open."""
        ActionChains(browser).send_keys(*keys).perform()
        return page("return [goals.agent.cell, goals.blocks[0].cell, arrays.opened[goals.state]]")

    block = 5 * WIDTH + 1
    page("begin(...arguments); byId('random').focus()", 5, int(MDP.encode(0, [block], [False])))
    assert press(Keys.TAB, Keys.ARROW_RIGHT, Keys.ARROW_DOWN) == [WIDTH + 1, block, 0]
    assert (
        page("return document.querySelector(':focus-visible').ariaLabel")
        == "Goal: Agent, row 2, column 2"
    )
    # The agent goes over the wall and back.
    assert press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP) == [2 * WIDTH + 1, block, 0]
    assert press(Keys.TAB, Keys.ARROW_RIGHT) == [2 * WIDTH + 1, block + 1, 0]
    assert press(Keys.TAB, Keys.ENTER) == [2 * WIDTH + 1, block + 1, 1]
    assert page("return goals.doors[0][0].ariaLabel") == "Goal: Door, open"


def test_other_folders_are_refused(model, tmp_path):
    refused = {
        "in a TwoRoomsSwitch world, got .*FrozenLake8x8-v1": folder_of(
            tmp_path / "lake", model, env_id="FrozenLake8x8-v1"
        ),
        "one of the agents default, td, paper, got .* table": folder_of(
            tmp_path / "table", model, agent="table"
        ),
        r"shape \(13, 9, 3\), as the map of the run has, got \(8, 4, 3\)": folder_of(
            tmp_path / "map", model, map="locks"
        ),
        "has no model.zip": folder_of(tmp_path / "begun"),
        "a page of .*model.zip cannot be built": folder_of(tmp_path / "damaged"),
    }
    (tmp_path / "damaged" / "model.zip").write_text("nonsense")
    for message, folder in refused.items():
        with pytest.raises(SettingError, match=message):
            demo.write(folder)
    assert command("demo", str(tmp_path)).stderr.startswith("error: folder must be that of a run")


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.GELU("tanh"), nn.LayerNorm(512)])
def test_networks_that_the_page_cannot_compute_are_refused(layer):
    other = model_of()
    other.policy.q_net_ema.trunk[2].weight.data[0, 0] = 1e6
    with pytest.raises(SettingError, match=r"not finite in half precision: layer0\.weight"):
        demo.render(other, MDP)
    other.policy.q_net_ema.trunk[3] = layer
    with pytest.raises(SettingError, match=rf"networks with {type(layer).__name__}"):
        demo.render(other, MDP)
