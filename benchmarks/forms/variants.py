"""Forms of many goals beside A2C in MinAtar: which goals, which rewards, which episodes. One run: variants.py FORM BETA GAME SEED STEPS."""

import csv
import os
import sys
from pathlib import Path

import numpy as np
import torch as th

from benchmarks import auxiliary
from benchmarks.agents import a2c
from benchmarks.auxiliary import AuxiliaryConfig, WORLDS
from dataclasses import replace
from sb3_manygoals.auxiliary import EpisodeBuffer, ManyGoalsCallback
from sb3_manygoals.auxiliary.losses import many_goals_losses, mean_of_real
from sb3_manygoals.goals.buffer import identical

OUT = Path(__file__).parent
# with "=" before the form, BETA is the length of the weighted gradient on the trunk, as a share of A2C's own there
form, beta, game, seed, steps = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])


class Recent(EpisodeBuffer):
    """The last episodes in place of the best."""

    def _end(self, env, observation, info):
        if "episode" in info:
            info = {**info, "episode": {**info["episode"], "r": float(self._ended)}}
        super()._end(env, observation, info)


class Diagnosed(ManyGoalsCallback):
    every = 500

    def _add_gradient(self, optimizer, args, kwargs):
        trunk = list(self.policy.features_extractor.parameters())
        wanted = len(self.episodes) and self.n_updates % self.every == 0
        if wanted:
            before = th.cat([p.grad.flatten() for p in trunk]).clone()
        if form.startswith("="):
            self._add_share(optimizer, trunk)
        else:
            super()._add_gradient(optimizer, args, kwargs)
        if wanted:
            added = th.cat([p.grad.flatten() for p in trunk]) - before
            with th.no_grad():
                seen = th.as_tensor(self.model._last_obs, device=self.policy.device)
                features = self.policy.shared_features(seen)
                batch = self.episodes.sample(64, self.n_steps, np.random.default_rng(0))
                q = self.policy.goal_values(th.as_tensor(batch.observations))
            row = [form, beta, game, seed, self.num_timesteps, float(before.norm()), float(added.norm()),
                   float(th.cosine_similarity(before, added, dim=0)), float((features > 0).any(0).float().mean()),
                   float((features > 0).float().mean()), float(q.mean()), float(q.std())]
            with open(OUT / "gradients.csv", "a") as f:
                csv.writer(f).writerow([x if isinstance(x, (str, int)) else f"{x:.5g}" for x in row])


    def _add_share(self, optimizer, trunk):
        if len(self.episodes) == 0:
            return
        with th.enable_grad():
            loss = self.loss(self.policy, self.episodes, self._rng)
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            gradients = th.autograd.grad(loss, parameters, allow_unused=True)
        used = {id(one): gradient for one, gradient in zip(parameters, gradients) if gradient is not None}
        ours, theirs = (th.nn.utils.get_total_norm(g) for g in ([used[id(p)] for p in trunk], [p.grad for p in trunk]))
        scale = self.weight * theirs / (ours + 1e-8)
        for parameter in parameters:
            if id(parameter) in used:
                gradient = used[id(parameter)] * scale
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self.n_updates += 1


class Shuffled(Diagnosed):
    """Each trajectory is taught another one's goal as if it were its own."""

    def _draw(self, *args):
        batch, observations, actions, real = super()._draw(*args)
        self.order = np.random.default_rng(self.n_updates).permutation(len(observations))
        return batch, observations, actions, real

    def loss(self, policy, episodes, rng):
        if self.n_updates % self.target_update_interval == 0:
            policy.update_goal_target()
        batch, observations, actions, real = self._draw(episodes, rng, policy.device)
        achieved = th.as_tensor(identical(batch.observations[:, 1:], np.broadcast_to(batch.observations[:, -1:], batch.observations[:, 1:].shape), 3))
        observations[:, -1] = observations[th.as_tensor(self.order), -1]
        with th.no_grad():
            next_q = policy.goal_values(observations, target=True)
        return mean_of_real(many_goals_losses(policy.goal_values(observations), next_q, actions, achieved, self.gamma, self.goal_reward, self.step_reward), real)


class Pairwise(Diagnosed):
    """Every transition, the goals at the ends of all trajectories. What ends an episode elsewhere never reaches the goal."""

    def loss(self, policy, episodes, rng):
        if self.n_updates % self.target_update_interval == 0:
            policy.update_goal_target()
        batch, observations, actions, real = self._draw(episodes, rng, policy.device)
        n, m = actions.shape
        rows = np.ascontiguousarray(batch.observations[:, 1:]).reshape(n * m, -1)
        keys = np.array([row.tobytes() for row in rows], dtype=object)
        _, numbers = np.unique(keys, return_inverse=True)
        numbers = numbers.reshape(n, m)
        achieved = th.as_tensor(numbers.reshape(-1, 1) == numbers[:, -1])
        ended = np.zeros((n, m), bool)
        ended[np.arange(n), batch.lengths - 1] = batch.terminated
        ended = th.as_tensor(ended).flatten()
        head, target = policy.heads["many_goals"], policy.goal_target.head
        features = policy.shared_features(observations.flatten(0, 1)).view(n, m + 1, -1)
        q = head.pairwise_taken(head.state_embedding(features[:, :-1].flatten(0, 1)), head.goal_embedding(features[:, -1]), actions.flatten())
        with th.no_grad():
            later = policy.shared_features(observations[:, 1:].flatten(0, 1), target=True)
            goals = later.view(n, m, -1)[:, -1]
            best = target.pairwise(target.state_embedding(later), target.goal_embedding(goals)).amax(dim=-1)
            never = 0.0 if self.step_reward == 0.0 else self.step_reward / (1 - self.gamma)
            targets = self.step_reward + self.gamma * best
            targets = targets.masked_fill(ended[:, None], never).masked_fill(achieved, self.goal_reward)
        return mean_of_real((q - targets).square(), real.flatten()[:, None].expand_as(q))


FORMS = {
    "printed": (Diagnosed, {}, EpisodeBuffer, 2000),
    "shuffled": (Shuffled, {}, EpisodeBuffer, 2000),
    "pairwise": (Pairwise, {}, EpisodeBuffer, 2000),
    "reward1": (Diagnosed, {"goal_reward": 1.0, "step_reward": 0.0}, EpisodeBuffer, 2000),
    "pairwise1": (Pairwise, {"goal_reward": 1.0, "step_reward": 0.0}, EpisodeBuffer, 2000),
    "long1": (Pairwise, {"goal_reward": 1.0, "step_reward": 0.0, "n_steps": 20}, EpisodeBuffer, 2000),
    "recent": (Diagnosed, {}, Recent, 128),
    "recent1": (Pairwise, {"goal_reward": 1.0, "step_reward": 0.0}, Recent, 128),
    "recentlong1": (Pairwise, {"goal_reward": 1.0, "step_reward": 0.0, "n_steps": 20}, Recent, 128),
}
cls, options, buffer, capacity = FORMS[form.lstrip("=")]
auxiliary.CALLBACKS["many_goals"] = lambda *weight, **kwargs: cls(*weight, **kwargs, **options)
auxiliary.EpisodeBuffer = buffer
table = OUT / "runs.csv"
if table.exists() and any(row[:5] == [form, str(beta), game, str(seed), str(steps)] for row in csv.reader(table.open())):
    sys.exit()
config = replace(WORLDS["minatar"], agent="many_goals", weight=beta, game=game, seed=seed, steps=steps, capacity=capacity, output=OUT / "folders" / str(os.getpid()), progress_bar=False, checkpoint_minutes=1000.0)
folder = config.run()
import json

import pandas as pd

score = json.loads((folder / "score.json").read_text())
curve = pd.read_csv(folder / "curve.csv")
half = curve.step[(curve.episode_return >= score["score"] / 2).idxmax()]
with table.open("a") as f:
    csv.writer(f).writerow([form, beta, game, seed, steps, f"{score['score']:.6g}", f"{curve.episode_return.mean():.4g}", score["episodes"], half, score["training_seconds"]])
import shutil

shutil.rmtree(folder.parent)
