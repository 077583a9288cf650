import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from minatar import Environment
from stable_baselines3 import A2C
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from sb3_manygoals.checkpoint.callback import ExactCheckpointCallback
from sb3_manygoals.minatar import GAMES, MinAtarCNN, MinAtarVectorEnv, game_id, make_minatar_vec_env

POLICY = {"features_extractor_class": MinAtarCNN, "net_arch": []}


def same_state(game, env):
    """Another game of MinAtar's own class, brought to where ``env``'s first game is, random numbers included."""
    other = Environment(game, env.games[0].sticky_action_prob)
    other.seed(0)
    other.random.set_state(env.games[0].random.get_state())
    return other


@pytest.mark.parametrize("game", GAMES)
def test_games_are_minatars_own(game):
    env = MinAtarVectorEnv(game, 2)
    env.reset(seed=3)
    env.set_checkpoint_state(env.get_checkpoint_state())
    twin = same_state(game, env)
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


@pytest.mark.parametrize("game", GAMES)
def test_observations_are_images_with_channels_first(game):
    env = MinAtarVectorEnv(game, 3)
    obs, _ = env.reset(seed=0)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert obs.dtype == np.uint8
    assert obs.shape == (3, env.games[0].n_channels, 10, 10)
    assert env.observation_space.contains(obs)
    assert set(np.unique(obs)) == {0, 255}


def play(env, n, seed=0):
    rng = np.random.default_rng(seed)
    return [env.step(rng.integers(env.single_action_space.n, size=env.num_envs))[:4] for _ in range(n)]


def test_equal_seeds_give_equal_games_and_copies_differ():
    env, again, other = (MinAtarVectorEnv("asterix", 4) for _ in range(3))
    for each, seed in ((env, 1), (again, 1), (other, 2)):
        each.reset(seed=seed)
    one, two, three = (play(each, 60) for each in (env, again, other))
    for left, right in zip(one, two, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
    assert any((left[0] != right[0]).any() for left, right in zip(one, three, strict=True))
    assert any((left[0][0] != left[0][1]).any() for left in one)


def test_a_game_is_cut_short_at_the_limit():
    env = MinAtarVectorEnv("freeway", 2, max_episode_steps=7)
    env.reset(seed=0)
    steps = play(env, 21)
    assert [step[3].tolist() for step in steps] == [[(n + 1) % 7 == 0] * 2 for n in range(21)]
    assert not any(step[2].any() for step in steps)


@pytest.mark.parametrize("game", GAMES)
def test_games_go_on_as_they_were_saved(game):
    env, again = MinAtarVectorEnv(game, 3), MinAtarVectorEnv(game, 3)
    env.reset(seed=5)
    play(env, 70)
    again.set_checkpoint_state(env.get_checkpoint_state())
    for left, right in zip(play(env, 70, 1), play(again, 70, 1), strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_saved_state_is_a_copy():
    env = MinAtarVectorEnv("space_invaders", 1)
    env.reset(seed=0)
    state = env.get_checkpoint_state()
    before = state["games"][0]["variables"]["alien_map"].copy()
    play(env, 60)
    np.testing.assert_array_equal(state["games"][0]["variables"]["alien_map"], before)


def test_a2c_learns_breakout_and_scores_are_those_of_whole_games():
    env = make_minatar_vec_env("Breakout", 16, seed=0)
    assert isinstance(env, VecMonitor)
    model = A2C("CnnPolicy", env, policy_kwargs=POLICY, seed=0)
    before = evaluate_policy(model, make_minatar_vec_env("Breakout", 16, seed=9), 64)[0]
    model.learn(25_000)
    after = evaluate_policy(model, make_minatar_vec_env("Breakout", 16, seed=9), 64)[0]
    assert after > before + 0.5, (before, after)


def test_a2c_resumes_to_the_last_bit(tmp_path):
    def model():
        return A2C("CnnPolicy", make_minatar_vec_env("seaquest", 4, seed=0), policy_kwargs=POLICY, seed=0)

    whole = model()  # which seeds torch's own random numbers
    whole.learn(800)
    model().learn(400, ExactCheckpointCallback(tmp_path, every_steps=400))
    rest = model()
    callback = ExactCheckpointCallback(tmp_path, every_steps=10_000)
    assert callback.resume(rest)
    rest.learn(800 - rest.num_timesteps, callback, reset_num_timesteps=False)
    for left, right in zip(whole.policy.parameters(), rest.policy.parameters(), strict=True):
        assert left.equal(right)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "brekout"}, "got 'brekout'; did you mean breakout"),
        ({"game": "asterix", "num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"game": "asterix", "max_episode_steps": 0}, "max_episode_steps must be at least 1, got 0"),
        ({"game": "asterix", "sticky_action_prob": 1.5}, r"sticky_action_prob must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MinAtarVectorEnv(**arguments)


def test_the_state_of_another_game_is_refused():
    with pytest.raises(ValueError, match="1 games of asterix, not of 1 of freeway"):
        MinAtarVectorEnv("freeway").set_checkpoint_state(MinAtarVectorEnv("asterix").get_checkpoint_state())


def test_names_of_games():
    assert [game_id(name) for name in ("SpaceInvaders", "space invaders", "ASTERIX")] == [
        "space_invaders",
        "space_invaders",
        "asterix",
    ]
