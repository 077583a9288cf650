import sys, time, cProfile, pstats
import torch as th

th.set_num_threads(1)
from benchmarks.worlds import World
from sb3_manygoals import LARGE, ManyGoalsDQN

n, steps = int(sys.argv[1]), int(float(sys.argv[2]))
env = World("TwoRoomsSwitch-v0", "warehouse").make_many(n, 0)
model = ManyGoalsDQN("CnnPolicy", env, seed=0, **{**LARGE, "learning_starts": 10**8, "buffer_size": 5_000_000})
model.learn(50_000)
p = cProfile.Profile() if len(sys.argv) > 3 else None
c = time.process_time()
if p:
    p.enable()
model.learn(steps, reset_num_timesteps=False)
if p:
    p.disable()
print(n, steps / (time.process_time() - c))
if p:
    pstats.Stats(p).sort_stats("tottime").print_stats(25)
