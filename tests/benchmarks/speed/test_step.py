import warnings

import pandas as pd

from benchmarks.speed import step
from tests.benchmarks.command_line import printed


def test_steps_and_actions_are_measured_beside_those_of_sb3s_dqn(tmp_path):
    options = ("--rounds=1", "--seconds=0.01", "--steps=64", "--threads=1")
    said = printed("speed-step", *options, f"--output={tmp_path}")
    (folder,) = tmp_path.iterdir()
    raw = pd.read_csv(folder / "step-1-threads.csv").set_index("contender")["value"]
    # Two agents in two worlds, with 1 and 8 environments, and predict.
    assert len(raw) == 2 * 2 * 3
    assert (raw > 0).all()
    for world in ("CartPole-v1", "MiniGrid-Empty-8x8-v0"):
        for what in ("1 environment(s)", "8 environment(s)"):
            assert f"steps/s, ours / SB3's DQN: {world}, {what}" in said
        assert f"calls/s, ours / SB3's DQN: {world}, predict" in said
    assert "nothing is learned" not in said


def test_both_agents_step_the_same_world_and_make_no_updates():
    models = [step.make(agent, "MiniGrid-Empty-8x8-v0", 8) for agent in step.AGENTS]
    ours, theirs = (model.get_env().unwrapped for model in models)
    assert ours.observation_space == theirs.observation_space
    assert ours.num_envs == theirs.num_envs == 8
    for model in models:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*nothing is learned")
            assert step.training(model, 64, [])() > 0
        assert model.num_timesteps >= 64
        assert model._n_updates == 0
