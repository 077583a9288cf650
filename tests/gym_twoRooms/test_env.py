import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import gym_twoRooms
from gym_twoRooms import LayoutError, TwoRoomsSwitchEnv

IDS = ["TwoRoomsSwitch-v0", "TwoRoomsSwitchSmall-v0"]


class Chosen:
    """Stands in for a generator, and gives the numbers chosen."""

    def __init__(self) -> None:
        self.number = 0.0

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("render_mode", [None, *TwoRoomsSwitchEnv.metadata["render_modes"]])
def test_gymnasium_and_sb3_have_nothing_to_say(env_id, render_mode, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(TwoRoomsSwitchEnv.metadata, "render_fps", 1000)

    def make():
        return gym.make(env_id, render_mode=render_mode).unwrapped

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(), skip_render_check=render_mode is None)
        warnings.filterwarnings("ignore", message="The minimal resolution for an image is 36x36")
        sb3_check_env(make(), skip_render_check=False)


@pytest.mark.parametrize(("env_id", "count"), [(IDS[0], 5728), (IDS[1], 220)])
def test_a_search_through_the_env_finds_all_states_and_they_look_different(env_id, count):
    env = gym.make(env_id).unwrapped
    env.reset(seed=0)
    env.np_random = chosen = Chosen()
    # The agent slips in each direction or not, and of each of these cases one part closes the door and one does not.
    outcomes = [first + rest for first in (0.0, 0.125, 0.25, 0.375, 0.5) for rest in (0.001, 0.1)]
    looks = {env.state: env.observation_of(env.state).tobytes()}
    frontier = [env.state]
    while frontier:
        state = frontier.pop()
        for action in range(5):
            for chosen.number in outcomes:
                env.set_state(state)
                observation, _, _, _, info = env.step(action)
                if info["state"] not in looks:
                    looks[info["state"]] = observation.tobytes()
                    frontier.append(info["state"])
    assert len(looks) == count
    assert len(set(looks.values())) == count
    assert set(looks) == set(range(env.mdp.n_states))


@pytest.fixture
def env():
    env = TwoRoomsSwitchEnv("small")
    env.reset(seed=3)
    return env


def test_spaces_and_outcomes(env):
    assert env.observation_space == gym.spaces.Box(0, 255, (8, 4, 3), np.uint8)
    assert env.action_space == gym.spaces.Discrete(5)
    observation, info = env.reset()
    assert observation in env.observation_space
    assert set(info) == {"state", "action_mask"}
    assert type(info["state"]) is int
    observation, reward, terminated, truncated, info = env.step(np.int64(1))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.state == info["state"] == env.state_of(observation)
    assert np.array_equal(info["action_mask"], env.mdp.action_masks(env.state))


def test_results_belong_to_the_caller(env):
    state = env.state
    for observation in (env.observation_of(state), env.set_state(state), env.reset(options={"state": state})[0]):
        observation[:] = 0
    _, info = env.reset(options={"state": state})
    info["action_mask"][:] = 7
    assert env.state_of(env.observation_of(state)) == state
    assert env.reset(options={"state": state})[1]["action_mask"].max() == 1


def test_the_random_numbers_drawn_are_part_of_the_interface(env):
    rng = np.random.default_rng(np.random.PCG64(np.random.SeedSequence(11)))
    _, info = env.reset(seed=11)
    assert info["state"] == int(rng.random() * 220)
    state = info["state"]
    for action in (0, 1, 4, 2, 3) * 20:
        state = int(env.mdp.step(np.array([state]), np.array([action]), lambda rows: rng.random(len(rows)))[0])
        assert env.step(action)[4]["state"] == state
    env.reset(options={"state": 5})
    env.set_state(6)
    assert env.np_random.random() == rng.random()


def test_same_seed_same_trajectory():
    def states(seed):
        env = TwoRoomsSwitchEnv("paper")
        _, info = env.reset(seed=seed)
        actions = np.random.default_rng(0).integers(5, size=300)
        return [info["state"], *(env.step(action)[4]["state"] for action in actions)]

    assert states(1) == states(1)
    assert states(1) != states(2)


def test_starting_states_are_uniform(env):
    counts = np.bincount([env.reset()[1]["state"] for _ in range(220 * 20)], minlength=220)
    # A chi-squared variable with 219 degrees of freedom: 219 +- 21.
    assert ((counts - 20) ** 2 / 20).sum() < 219 + 5 * 21


def test_a_layout_may_be_a_name_a_map_or_a_layout():
    text = "S.D.S\n....."
    assert TwoRoomsSwitchEnv("small").mdp is gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp
    assert TwoRoomsSwitchEnv(text).mdp is TwoRoomsSwitchEnv(gym_twoRooms.Layout.parse(text)).mdp
    with pytest.raises(LayoutError, match="no layout named"):
        TwoRoomsSwitchEnv("large")


@pytest.mark.parametrize("action", [5, -1, 1.0, None, "up", np.array([0, 1])])
def test_invalid_actions_are_refused(env, action):
    with pytest.raises(InvalidAction, match=r"must be an integer in \[0, 5\)"):
        env.step(action)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (220, ValueError, r"must be in \[0, 220\), got 220"),
        (-1, ValueError, "got -1"),
        (1.0, TypeError, "must be an integer, got 1.0"),
        (True, TypeError, "must be an integer"),
        ("1", TypeError, "must be an integer"),
        ([1, 2], TypeError, "must be one integer"),
    ],
)
def test_invalid_states_are_refused(env, state, error, message):
    for use in (env.set_state, env.observation_of, lambda state: env.reset(options={"state": state})):
        with pytest.raises(error, match=message):
            use(state)


def test_unknown_options_are_refused(env):
    with pytest.raises(ValueError, match=r"Unknown reset options \['goal'\]"):
        env.reset(options={"goal": 1, "state": 0})
    env.reset(options={})


def test_a_reset_is_needed_first():
    env = TwoRoomsSwitchEnv(render_mode="rgb_array")
    for use in (lambda: env.step(0), lambda: env.state, env.render):
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            use()


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match=r"render_mode must be None or one of \['rgb_array', 'human', 'ansi'\], got 'hum'"):
        TwoRoomsSwitchEnv(render_mode="hum")
    for size in (0, -3, 1.5):
        with pytest.raises(ValueError, match="cell_size must be an integer of at least 1"):
            TwoRoomsSwitchEnv(cell_size=size)
    with pytest.raises(ValueError, match="slip_probability must be in"):
        TwoRoomsSwitchEnv(slip_probability=2)


def test_rendering_needs_a_mode(env):
    with pytest.warns(UserWarning, match="without a render mode"):
        assert env.render() is None
