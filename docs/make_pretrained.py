"""
Make the agent that comes with the package, and the page demo.html that shows it.

Run it in the root of the repository, with the folder of a run of README's program:

    python -m benchmarks mastery --n-envs 1 --total-steps 3000000 --eval-freq 3000000
    python -m docs.make_pretrained runs/mastery-default-...

The weights of matrices are rounded to float16. ``goals.csv`` and ``summary.csv`` of the run tell
what the agent reached before.
"""

import sys
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np

from benchmarks.demo import page
from gym_twoRooms import TwoRoomsSwitchEnv
from sb3_manygoals import ManyGoalsDQN, pretrained

ENV_ID = "TwoRoomsSwitch-v0"
WEIGHTS = Path(pretrained.__file__).with_name(f"{ENV_ID}.npz")
DEMO = Path(__file__).with_name("demo.html")


def write_weights(model: ManyGoalsDQN) -> None:
    """
    Write the goals and the averaged weights of a model.

    :param model: a trained model with planned targets
    """
    assert model.goal_buffer is not None
    assert model.policy.q_net_ema is not None
    arrays: dict[str, Any] = {"goals": model.goal_buffer.observations}
    for name, weights in model.policy.q_net_ema.state_dict().items():
        values = weights.cpu().numpy()
        arrays[name] = values.astype(np.float16) if name.endswith("weight") else values
    np.savez_compressed(WEIGHTS, **arrays)


def main() -> None:
    """Write both files."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = Path(sys.argv[1])
    model = ManyGoalsDQN.load(run / "model.zip", env=gym.make(ENV_ID), device="cpu")
    model.load_world(run / "world.npz")
    write_weights(model)
    rounded = pretrained.load_pretrained(ENV_ID, device="cpu")
    mdp = cast("TwoRoomsSwitchEnv", gym.make(ENV_ID).unwrapped).mdp
    DEMO.write_text(page.render(rounded, mdp), encoding="utf-8")
    for path in (WEIGHTS, DEMO):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
