import numpy as np
from gymnasium import spaces

from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer

CELLS = spaces.Discrete(100)
SPACE = spaces.Dict({key: CELLS for key in ("observation", "achieved_goal", "desired_goal")})


def _add(buffer, time):
    n = buffer.n_envs
    here, there = np.arange(n) + 10 * time, np.arange(n) + 10 * time + 1
    infos = [{"achieved_goal_id": 100 + cell, "env_terminated": cell % 2 == 0} for cell in there]
    buffer.add({"observation": here}, {"observation": there}, np.full(n, time % 3), np.zeros(n), np.zeros(n, bool), infos)


def test_the_newest_transitions_stay_whole():
    buffer = ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), device="cpu", n_envs=2)
    for time in range(5):
        _add(buffer, time)
    assert buffer.full
    assert buffer.size() == 3
    batch = buffer.sample(500)
    here = batch.observations.numpy()
    assert set(here) == {20, 21, 30, 31, 40, 41}
    np.testing.assert_array_equal(batch.next_observations.numpy(), here + 1)
    np.testing.assert_array_equal(batch.next_ids.numpy(), here + 101)
    np.testing.assert_array_equal(batch.actions.numpy(), (here // 10) % 3)
    np.testing.assert_array_equal(batch.terminated.numpy(), here % 2 == 1)
    assert batch.actions.shape == (500,)
