"""When a world is reset at the end of a goal's episode, and when it goes on."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, VecGoalBufferWrapper
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.tracker import Starts
from tests.sb3_manygoals.worlds import Corridor

LENGTH = 40
NINTH = Corridor(LENGTH).observation_of(9)


@given(st.lists(st.integers(UNKNOWN, 6), max_size=30), st.integers(1, 100))
def test_starts_are_broad_by_the_share_of_equal_pairs(ids, n_known):
    starts = Starts()
    for number in ids:
        starts.observe(np.array([number]))
    pairs = list(itertools.combinations(ids, 2))
    equal = sum(one == other != UNKNOWN for one, other in pairs)
    estimate = len(pairs) / equal if equal else np.inf
    assert starts.are_broad(n_known) == (estimate >= max(n_known / 10, 1.5))
    at_once = Starts()
    at_once.observe(np.array(ids, dtype=np.int64))
    assert vars(at_once) == vars(starts)


class Counted(Corridor):
    """A corridor that counts its resets, and where its steps began."""

    def __init__(self, start):
        super().__init__(LENGTH, start=start)
        self.resets = 0

    def reset(self, **kwargs):
        self.resets += 1
        return super().reset(**kwargs)


class Player:
    """
    One environment in either wrapper, stepped at random.

    :param vector: whether to wrap a vector of one environment
    :param start: the cell in which episodes start. None: a random one
    :param settings: further arguments of the wrapper
    """

    def __init__(self, vector, start=None, **settings):
        self.world = Counted(start)
        if vector:
            wrapper = VecGoalBufferWrapper(DummyVecEnv([lambda: self.world]), **settings)
            self.env = wrapper
        else:
            wrapper = GoalBufferWrapper(self.world, **settings)
            self.env = DummyVecEnv([lambda: wrapper])
        self.tracker = wrapper.goal_tracker
        self.env.seed(0)
        self.env.reset()
        self.rng = np.random.default_rng(0)
        self.ends = 0
        self.jumps = 0

    def play(self, n_steps):
        """Step, and count ends of episodes and resets that a step has made."""
        for _ in range(n_steps):
            resets = self.world.resets
            _, _, (done,), _ = self.env.step(self.rng.integers(3, size=1))
            self.ends += done
            self.jumps += self.world.resets > resets
        return self


@pytest.mark.parametrize("vector", [False, True])
def test_a_world_with_one_start_goes_on_but_returns_now_and_then(vector):
    player = Player(vector, start=20, max_episode_steps=5)
    # It is reset at most twice before there are two starts to compare, and then after 20 episodes
    # of full length.
    player.play(100)
    assert player.jumps <= 1
    assert player.ends >= 20
    since = int(player.tracker.world_steps[0])
    while since <= player.tracker.world_steps[0] < 200:
        since = int(player.tracker.world_steps[0])
        player.play(1)
    # It is reset at the first end of an episode from there on.
    assert 99 <= since <= 104
    jumps = player.jumps
    player.play(99)
    assert player.jumps == jumps


@pytest.mark.parametrize("vector", [False, True])
def test_an_evaluation_begins_anew_at_every_end(vector):
    player = Player(vector, start=20, max_episode_steps=5)
    goals = player.play(50).tracker.goal_buffer
    evaluated = Player(vector, start=20, goal_buffer=goals, training=False, max_episode_steps=5)
    assert evaluated.play(100).ends >= 20
    assert evaluated.jumps == evaluated.ends


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("goal_list", [None, [0, 1, 2, 3]])
def test_starts_are_as_broad_with_a_list_of_goals(vector, goal_list):
    goals = GoalBuffer(
        Corridor(LENGTH).observation_space,
        goal=lambda seen: seen.argmax() // 10,
        goal_list=goal_list,
    )
    player = Player(vector, max_episode_steps=5, goal_buffer=goals).play(400)
    assert player.ends >= 80
    assert player.jumps > 0.8 * player.ends


@pytest.mark.filterwarnings("ignore:the goal buffer is full")
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("why", ["in no list", "held out", "no room"])
def test_one_start_that_is_no_goal_is_one_start(vector, why):
    space = Corridor(LENGTH).observation_space
    start = Corridor(LENGTH).observation_of(20)
    buffers = {
        "in no list": GoalBuffer(space, goal=lambda seen: seen.argmax(), goal_list=[2, 3, 30]),
        "held out": GoalBuffer(space, held_out=start[None]),
        "no room": GoalBuffer(space, capacity=2),
    }
    buffers["no room"].add(np.stack([Corridor(LENGTH).observation_of(cell) for cell in (0, 1)]))
    player = Player(vector, start=20, max_episode_steps=5, goal_buffer=buffers[why])
    player.play(95)
    assert player.ends >= 18
    # If the first start is held out, the first goal is found by a step, and so is another start.
    assert player.jumps <= 6


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("start", "reset_worlds"), [(None, "auto"), (20, True), (None, False)])
def test_a_world_with_many_starts_is_reset_at_every_end_but_what_is_asked_for_is_done(
    vector, start, reset_worlds
):
    player = Player(vector, start=start, max_episode_steps=5, reset_worlds=reset_worlds).play(400)
    assert player.ends >= 80
    assert player.jumps == (player.ends if reset_worlds else 0)
    assert player.tracker.starts.n_starts == player.world.resets
    # Each observation is counted once, so that beginnings and ends of short episodes do not look
    # as if observations recurred.
    states = player.tracker.goal_buffer.states
    assert states.n_added == 400 + player.world.resets
    assert states.n_recurred == states.n_added - len(states)


@pytest.mark.parametrize(
    "asked", [{"seed": 3}, {"options": {"cell": 7}}, {"options": {"goal": NINTH}}]
)
def test_who_asks_for_something_gets_a_reset(asked):
    env = GoalBufferWrapper(Counted(20), max_episode_steps=5, reset_worlds=False)
    env.reset(seed=0)
    while not any(env.step(1)[2:4]):
        pass
    # Without a request the world would go on.
    resets = env.unwrapped.resets
    obs, _ = env.reset(**asked)
    assert env.unwrapped.resets == resets + 1
    assert obs["observation"].argmax() == asked.get("options", {}).get("cell", 20)
    if "goal" in asked.get("options", {}):
        assert obs["desired_goal"].argmax() == 9


def test_a_world_that_goes_on_begins_where_it_stands_with_its_own_info():
    env = GoalBufferWrapper(Counted(20), max_episode_steps=5, reset_worlds=False)
    keys = env.reset(seed=0)[1].keys()
    for end in range(20):
        while not any(env.step(end % 3)[2:4]):
            pass
        if end % 2:
            # This is a step too many, which Gymnasium lets pass.
            env.step(0)
        obs, info = env.reset()
        assert info.keys() == keys
        assert obs["observation"].argmax() == info["cell"] == env.unwrapped.cell
