"""From a mastered agent on under a task's reward: ManyGoalsDQN learns on, or A2C gets its trunk, or a new one. Exact ratios to the best return."""
import sys, time, copy, csv
import numpy as np, torch as th, gymnasium as gym
th.set_num_threads(1)
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from benchmarks.tasks import TaskWorld
from benchmarks.told_tasks import TASKS, WORLD, returns, rewarded_states
from gym_twoRooms.oracle import transition_matrices
from sb3_manygoals.pretrained import load_pretrained
mdp = gym.make(WORLD).unwrapped.mdp; M = transition_matrices(mdp)
task, seed, out = TASKS[int(sys.argv[1])], int(sys.argv[2]), sys.argv[3]
world = TaskWorld(WORLD, None, task); R = rewarded_states(mdp, task); best = returns(M, R, .99)[~R].mean()
parts = np.array_split(np.arange(mdp.n_states), 20); images = [mdp.observe(p) for p in parts]
def ratio(actions): return returns(M, R, .99, np.concatenate(actions))[~R].mean() / best
rows = []
def note(agent, step, r):
    rows.append((task, agent, seed, step, round(float(r), 4))); print(*rows[-1], flush=True)
    with open(out, "a", newline="") as f: csv.writer(f).writerow(rows[-1])
class Every(BaseCallback):
    def __init__(s, n, f): super().__init__(); s.n, s.f, s.last = n, f, 0
    def _on_step(s):
        if s.num_timesteps // s.n > s.last // s.n: s.f(s.num_timesteps)
        s.last = s.num_timesteps; return True
def told(model):
    p = model.task_policy(lambda seen: R[mdp.states_of(seen)], gamma=.99)
    return ratio([p.predict(i)[0] for i in images])
class Trunk(BaseFeaturesExtractor):
    given = None
    def __init__(s, space):
        super().__init__(space, 512); s.trunk = copy.deepcopy(Trunk.given)
    def forward(s, x): return s.trunk(x.permute(0, 2, 3, 1))
for kind in sys.argv[4].split(","):
    t = time.time()
    if kind.startswith("many"):
        model = load_pretrained(WORLD, world.make_many(8, seed), device="cpu"); model.set_random_seed(seed); model.learning_rate = None
        lr = float(kind.split("_")[1]); model.lr_schedule = lambda p: lr * p
        model.goal_buffer.favor_rewarded(.25 if "favored" in kind else 0.)
        note(kind, 0, told(model))
        model.learn(50_000, Every(10_000, lambda n: note(kind, n, told(model))))
    else:
        donor = load_pretrained(WORLD, device="cpu"); trunk = donor.policy.q_net.trunk
        if kind == "a2c-new":
            for m in trunk.modules():
                if hasattr(m, "reset_parameters"): m.reset_parameters()
        Trunk.given = trunk
        model = A2C("CnnPolicy", make_vec_env(world.make, 8, seed), seed=seed, device="cpu", ent_coef=.01, policy_kwargs=dict(features_extractor_class=Trunk, net_arch=[], normalize_images=False))
        def a2c(n): note(kind, n, ratio([model.predict(np.moveaxis(i, 3, 1))[0] for i in images]))
        model.learn(200_000, Every(20_000, a2c))
    print(kind, round(time.time() - t), "s", flush=True)
