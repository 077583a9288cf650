"""sb3-contrib's MaskablePPO, as it is, on the world as it is."""

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from gym_twoRooms import Action, TwoRoomsMDP
from sb3_manygoals import GymnasiumVecEnv


class FixedGoal(gym.Wrapper):
    """Ends at one state, which is worth 1; a step costs 0.02. Episodes begin where the block is in its place already."""

    def __init__(self, env):
        super().__init__(env)
        mdp: TwoRoomsMDP = self.unwrapped.mdp
        block = mdp.blocks.min()
        self.goal = int(mdp.encode(mdp.agent.max(), [block], [True]))  # by the switch of the lower room, with the door open
        self.starts = np.flatnonzero((mdp.blocks[:, 0] == block) & (np.arange(mdp.n_states) != self.goal))
        self.forbidden = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.env.reset(options={"state": int(self.np_random.choice(self.starts))})

    def step(self, action):
        self.forbidden += not self.unwrapped.action_masks()[action]
        observation, _, _, truncated, info = self.env.step(action)
        reached = info["state"] == self.goal
        return observation, 1.0 if reached else -0.02, reached, truncated, info


def make_env():
    return TimeLimit(FixedGoal(gym.make("TwoRoomsSwitchSmall-v0")), 50)


def success(act, episodes=200):
    env = make_env()
    reached = 0
    for episode in range(episodes):
        observation, info = env.reset(seed=1000 + episode)
        ended = False
        while not ended:
            mask = env.get_wrapper_attr("action_masks")()
            assert np.array_equal(mask, info["action_mask"])
            observation, _, terminated, truncated, info = env.step(act(observation, mask))
            ended = terminated or truncated
        reached += terminated
    return reached / episodes, env.get_wrapper_attr("forbidden")


def learner(env, **kwargs):
    return MaskablePPO("MlpPolicy", env, learning_rate=2e-3, ent_coef=0.0, gamma=0.97, seed=0, device="cpu", **kwargs)


def test_it_learns_to_reach_a_fixed_goal_and_never_takes_a_masked_action():
    rng = np.random.default_rng(0)
    by_chance, forbidden = success(lambda _, mask: rng.choice(np.flatnonzero(mask)))
    assert forbidden == 0
    venv = make_vec_env(make_env, n_envs=8, seed=0)
    model = learner(venv, n_steps=128, batch_size=128, n_epochs=6)
    model.learn(6_000)
    assert venv.get_attr("forbidden") == [0] * 8
    learned, forbidden = success(lambda observation, mask: int(model.predict(observation, action_masks=mask)[0]))
    assert forbidden == 0
    # measured: .23 by chance, .63 to .70 learned; the standard error of the difference is below .05
    assert learned > by_chance + 0.2


def test_it_runs_on_the_vector_environment():
    envs = gym.make_vec("TwoRoomsSwitchSmall-v0", num_envs=6, autoreset_mode="SameStep", max_episode_steps=9)
    venv: VecEnv = GymnasiumVecEnv(envs)
    model = learner(venv, n_steps=16, batch_size=32, n_epochs=1)
    allowed = []
    model.learn(200, callback=lambda local, _: allowed.append(check(local)) or True)
    assert len(allowed) >= 30
    assert any((masks[:, Action.TOGGLE] & ~masks[0, Action.TOGGLE]).any() for masks in allowed)


def check(local):
    masks, actions = local["action_masks"], local["actions"]
    assert masks.shape == (6, 5)
    assert masks[np.arange(6), actions].all()
    return masks
