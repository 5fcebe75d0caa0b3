"""Three questions to a run, in pandas, five lines each. Needs neither a GPU nor torch: python examples/notebook.py

The cells (``# %%``) open as a notebook in editors that know them. docs/measuring.md explains the columns; every column
has one dtype, and an undefined figure is <NA>. ``Run.load`` reads unfinished runs too.
"""

# %%
from pathlib import Path

import pandas as pd

from dsmla_bench.results import Run

pd.set_option("display.width", 120)
run = Run.load(Path(__file__).parent / "h200")
rows, samples = run.rows(), run.samples()
timed = rows[(rows["status"] == "ok") & ~rows["suspect"]]

# %%
print("How many times faster than vllm is triton, by tokens? (shuffled pages)\n")
shuffled = timed[(timed["page_order"] == "shuffled") & timed["operation"].isin(["write", "gather"])]
us = shuffled.pivot(index=["operation", "format", "tokens"], columns="provider", values="us")
speed_up = (us["vllm"] / us["triton"]).dropna().unstack("tokens")
print(speed_up.round(2), "\n")

# %%
print("Where is the most time left above the floor? (triton, 65536 tokens)\n")
ours = timed[(timed["provider"] == "triton") & (timed["tokens"] == 65536)]
ours = ours.assign(us_above_floor=ours["us"] - ours["bound_us"]).sort_values("us_above_floor", ascending=False)
columns = ["operation", "format", "page_order", "us", "bound_us", "us_above_floor", "gbps"]
print(ours[columns].round(1).to_string(index=False), "\n")

# %%
print("Which launches vary most? (activity samples: 95th over 5th percentile)\n")
by_row = samples[samples["method"] == "activity"].groupby("row_id")["us"]
spread = (by_row.quantile(0.95) / by_row.quantile(0.05)).rename("p95 / p5")
widest = timed[timed["provider"] != "reference"].join(spread, on="row_id").nlargest(5, "p95 / p5")
print(widest[["operation", "format", "provider", "tokens", "us", "p95 / p5"]].round(2).to_string(index=False))
