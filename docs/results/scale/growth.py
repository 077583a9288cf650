"""growth.csv to growth.svg: steps, seconds and memory to .9 of all observations, against their number; exponents on the way."""
from pathlib import Path
import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

here = Path(__file__).parent
runs = pd.read_csv(here / "growth.csv").query("commit in ('42f7dfb', '7c7d6a5')")
reached = runs[runs.greedy >= 0.85].sort_values("training_seconds")
best = reached.groupby(["agent", "observations"], as_index=False).first()
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 9})
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for axis, (column, title) in zip(axes, {"steps": "environment steps", "training_seconds": "seconds of one core", "peak_mb": "peak memory, MB"}.items()):
    for agent, rows in best.groupby("agent"):
        axis.loglog(rows.observations, rows[column], "o-", label=agent)
        if len(rows) > 1:
            slope = np.polyfit(np.log(rows.observations), np.log(rows[column]), 1)[0]
            print(column, agent, round(slope, 2), len(rows))
    axis.set(title=title, xlabel="observations")
axes[0].legend(frameon=False)
figure.savefig(here / "growth.svg", metadata={"Date": None})
