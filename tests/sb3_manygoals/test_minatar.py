"""The games of MinAtar as vector environments."""

import numpy as np
import pytest
from minatar import Environment
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import VecMonitor, VecTransposeImage, is_vecenv_wrapped

from sb3_manygoals.minatar import GAMES, MinAtarCNN, MinAtarVectorEnv, make_minatar_vec_env
from tests.sb3_manygoals.checkpoint import trees


@pytest.mark.parametrize("game", GAMES)
def test_games_are_minatars_own_as_images_with_channels_first(game):
    env = MinAtarVectorEnv(game, 2)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert set(np.unique(obs)) == {0, 255}
    twin = Environment(game, env.games[0].sticky_action_prob)
    twin.seed(0)
    twin.random.set_state(env.games[0].random.get_state())
    vars(twin.env).update(env.get_checkpoint_state()["games"][0]["variables"])
    rng = np.random.default_rng(0)
    for _ in range(400):
        actions = rng.integers(env.single_action_space.n, size=2)
        obs, rewards, terminated, truncated, infos = env.step(actions)
        reward, over = twin.act(env.action_set[actions[0]])
        seen = infos["final_obs"][0] if terminated[0] else obs[0]
        assert (reward, over) == (rewards[0], terminated[0])
        np.testing.assert_array_equal(seen == 255, twin.state().transpose(2, 0, 1))
        assert not truncated.any()
        if over:
            twin.reset()
            twin.last_action = 0
            np.testing.assert_array_equal(obs[0] == 255, twin.state().transpose(2, 0, 1))


def play(env, n):
    rng = np.random.default_rng(0)
    return [
        env.step(rng.integers(env.single_action_space.n, size=env.num_envs))[:4] for _ in range(n)
    ]


def test_equal_seeds_give_equal_games_and_copies_differ():
    def pictures(seed):
        env = MinAtarVectorEnv("asterix", 4)
        env.reset(seed=seed)
        return np.stack([step[0] for step in play(env, 60)])

    one = pictures(1)
    np.testing.assert_array_equal(one, pictures(1))
    assert (one != pictures(2)).any()
    assert (one[:, 0] != one[:, 1]).any()


def test_a_game_is_cut_short_at_the_limit():
    env = MinAtarVectorEnv("freeway", 2, max_episode_steps=7)
    env.reset(seed=0)
    steps = play(env, 21)
    assert [step[3].tolist() for step in steps] == [[(n + 1) % 7 == 0] * 2 for n in range(21)]
    assert not any(step[2].any() for step in steps)


def test_a2c_takes_the_pictures_as_they_are_and_scores_are_those_of_whole_games():
    env = make_minatar_vec_env("Breakout", 4, seed=0)
    assert isinstance(env, VecMonitor)
    model = A2C(
        "CnnPolicy",
        env,
        policy_kwargs={"features_extractor_class": MinAtarCNN, "net_arch": []},
        seed=0,
    ).learn(400)
    assert not is_vecenv_wrapped(model.env, VecTransposeImage)
    assert {episode["r"] == int(episode["r"]) for episode in model.ep_info_buffer} == {True}
    # The ball takes some steps to fall.
    assert np.mean([episode["l"] for episode in model.ep_info_buffer]) > 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "brekout"}, "there is no game 'brekout'; did you mean breakout"),
        ({"num_envs": 0}, "num_envs must be a whole number, at least 1, got 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number, at least 1, got 0"),
        ({"sticky_action_prob": 1.5}, r"sticky_action_prob must be a number in \[0, 1\], got 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MinAtarVectorEnv(**{"game": "asterix", **arguments})


def test_bad_numbers_are_refused_before_the_first_reset():
    with pytest.raises(ValueError, match="n_envs must be a whole number, at least 1, got 0"):
        make_minatar_vec_env("asterix", 0)
    with pytest.raises(ValueError, match=r"seed must be a whole number, at least 0, got 1\.5"):
        make_minatar_vec_env("asterix", 2, seed=1.5)


def test_bad_actions_options_and_states_are_refused():
    env = MinAtarVectorEnv("asterix", 2)
    env.reset(seed=0)
    before = env.get_checkpoint_state()
    for actions in ([0, -1], [5, 0], [0, 0, 0], [0], [[0], [0]], [0.0, 1.0]):
        with pytest.raises(ValueError, match=r"actions must be 2 numbers in \[0, 5\), got"):
            env.step(np.array(actions))
    trees.assert_same(env.get_checkpoint_state(), before)
    with pytest.raises(ValueError, match="options must have no reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match="games with game='asterix', not 'space_invaders'"):
        MinAtarVectorEnv("Space Invaders", 2).set_checkpoint_state(env.get_checkpoint_state())
