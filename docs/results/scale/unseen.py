"""Mastery of 5,000 goals of mansion, those ever planned and those never."""
import sys
import numpy as np, torch as th
th.set_num_threads(1)
from benchmarks.worlds import World
from sb3_manygoals import GoalBuffer, ManyGoalsDQN, evaluate_mastery
folder = sys.argv[1]
world = World("TwoRoomsSwitch-v0", "mansion")
model = ManyGoalsDQN.load(folder + "/model.zip", device="cpu")
buffer = GoalBuffer(world.space, 200_000); 
import numpy as np
data = np.load(folder + "/goals.npz"); print({k: data[k].shape for k in data})
goals = data["observations"] if "observations" in data else data[list(data)[0]]
updates = np.load("/work/out/mansion/updates.npy")
print(len(goals), len(updates), int((updates > 0).sum()), "goals were in updates")
ids = np.sort(np.random.default_rng(0).choice(len(goals), 5000, replace=False))
seen = updates[ids] > 0 if len(updates) else None
for eps in (0.0, 0.1):
    r = evaluate_mastery(model, world.vector(5000), goals[ids], max_steps=400, epsilon=eps, seed=1001)
    ok = r.steps[:, 0] >= 0
    print(eps, "all", ok.mean(), "planned", ok[seen].mean(), int(seen.sum()), "never", ok[~seen].mean(), int((~seen).sum()), flush=True)
