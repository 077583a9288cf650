"""
Train in mansion with three settings of the earlier version, and measure.

In the root of the repository, with PYTHONPATH=.:

    python docs/results/scale/mansion_likeliest.py mastery --map mansion --total-steps 32250000 \
        --most-goals 1000 --eval-steps 400 --eval-freq 8000000 --curve-goals 300 \
        --agent-kwargs '{"updates_per_step": 0.0037}'
"""

from benchmarks.__main__ import main
from sb3_manygoals import PlannedTargets

# The weight of the best actions was 10,000 then. Now it grows with the number of states.
PlannedTargets.best_weight = 10_000 * 8_192 / 190_800
PlannedTargets.near_floor = 0.1
PlannedTargets.fresh_goals = 0.3

if __name__ == "__main__":
    main()
