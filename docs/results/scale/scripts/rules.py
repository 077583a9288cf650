"""First reward and observations found, by rule of exploration. Usage: rules.py OUT.csv STEPS SEEDS WORLD..."""
import csv, sys, time
from pathlib import Path
import numpy as np, torch as th
th.set_num_threads(1)
from stable_baselines3.common.callbacks import BaseCallback
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN, PlannedTargets
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector

class RandomActions(PlannedTargets):
    """Goes to goals by the plan, and explores by random actions, as Go-Explore does."""
    def act(self, observations, goal_ids, explore, rng, action_masks):
        states = self.learner.replay_buffer.states.add(observations)
        actions = self.plan.best_actions(states, goal_ids)
        random = explore | (actions < 0)
        actions[random] = rng.integers(self.exploration.n_actions, size=random.sum())
        return actions
    def after_step(self, num_timesteps, n_envs): pass

class Least(GoalSelector):
    """The known observation that the smallest count has."""
    model = None
    def counts(self, goals): return goals.labels[: len(goals), 0]
    def select(self, goal_buffer, current_ids, rng):
        c = self.counts(goal_buffer) + rng.random(len(goal_buffer)) * .5
        ids = np.empty(len(current_ids), np.int64)
        for row, now in enumerate(current_ids.tolist()):
            here = c.copy()
            if now >= 0 and len(here) > 1: here[now] = np.inf
            ids[row] = here.argmin()
        return ids

class Frontier(Least):
    """... with the least tried action: states and goals have the same numbers where every observation is a goal."""
    def counts(self, goals):
        replay = self.model.replay_buffer
        n = len(goals); c = np.zeros(n)
        states = replay.states
        if not hasattr(self, "of"): self.of = np.zeros(0, np.int64)
        if len(self.of) < n:
            self.of = np.concatenate([self.of, states.add(goals[np.arange(len(self.of), n)])])
        return replay.tried[self.of].min(axis=1)

class Note(BaseCallback):
    def __init__(s, grid): super().__init__(); s.first=None; s.grid=list(grid); s.found=[]
    def _on_step(s):
        if s.first is None and max(i["env_reward"] for i in s.locals["infos"]) > 0: s.first = s.num_timesteps
        if s.grid and s.num_timesteps >= s.grid[0]:
            s.found.append(len(s.model.goal_buffer)); s.grid.pop(0)
        return True

def run(world, rule, seed, steps):
    w = World(world); grid = [steps // 5 * k for k in range(1, 6)]
    kw = dict(seed=seed, batch_size=2, goal_batch_size=2, device="cpu")
    selector = {"least visited goals": Least(), "frontier goals": Frontier()}.get(rule, UniformSelector())
    if rule == "random actions": kw.update(learning_starts=10**9)
    elif rule != "default":
        kw.update(target_class=RandomActions, exploration_initial_eps=.5, exploration_final_eps=.5)
    model = ManyGoalsDQN("CnnPolicy" if w.is_seen else "MlpPolicy", w.make(), goal_wrapper_kwargs={"selector": selector}, **kw)
    if isinstance(selector, Least): selector.model = model
    note = Note(grid); t = time.time()
    model.learn(steps, note, log_interval=10**9)
    return [world, rule, seed, note.first or "", *note.found, round(time.time() - t, 1)]

if __name__ == "__main__":
    out, steps, seeds = Path(sys.argv[1]), int(float(sys.argv[2])), int(sys.argv[3])
    done = {tuple(r[:3]) for r in csv.reader(out.open())} if out.exists() else set()
    if not done:
        with out.open("w") as f: csv.writer(f).writerow(["world","rule","seed","first_reward",*(f"found_{steps//5*k}" for k in range(1,6)),"seconds"])
    for seed in range(seeds):
        for world in sys.argv[4:]:
            for rule in ("default", "random actions", "uniform goals", "least visited goals", "frontier goals"):
                if (world, rule, str(seed)) in done: continue
                row = run(world, rule, seed, steps); print(row, flush=True)
                with out.open("a") as f: csv.writer(f).writerow(row)
