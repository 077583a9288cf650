"""SB3's progress bar, which also says what the learner does besides steps."""

from stable_baselines3.common.callbacks import ProgressBarCallback

from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets


class PlanProgressBarCallback(ProgressBarCallback):
    """SB3's progress bar; it says when steps are random, when a plan is made, and what it knows."""

    def _on_rollout_start(self) -> None:
        self._say(self._standing())

    def _on_rollout_end(self) -> None:
        targets = self._planned
        progress = 1.0 - self.model._current_progress_remaining
        begun = self.num_timesteps > getattr(self.model, "learning_starts", 0)
        if begun and targets is not None and targets.is_plan_due(progress):
            self._say("planning")

    @property
    def _planned(self) -> PlannedTargets | None:
        targets = getattr(self.model, "targets", None)
        return targets if isinstance(targets, PlannedTargets) else None

    def _standing(self) -> str:
        """What the steps are taken by, in a few words."""
        targets = self._planned
        if self.model.num_timesteps < getattr(self.model, "learning_starts", 0):
            return "random steps"
        if targets is None or targets.planned_at is None:
            return ""
        return f"plan: {len(targets.plan.goal_ids):,} goals, {targets.known_ways:.0%} of ways known"

    def _say(self, text: str) -> None:
        """Show a text beside the bar, at once if it is another one."""
        if self.pbar.desc not in (text, f"{text}: "):
            self.pbar.set_description(text)
