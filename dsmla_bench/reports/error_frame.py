"""Which rows of an error run belong together, and what they are called: pure selection and naming.

A line of a picture or table is a variant: format and revision, with the origin of its scale and its latent scale where
those are not the default. Providers give the same figures from the same bytes, so pictures draw one: reference where it
is there.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from dsmla_bench.reports.tables import format_label


def named(rows: pd.DataFrame, default_revisions: Mapping[str, str]) -> pd.DataFrame:
    """The rows with a column ``label`` that tells the variants of one source apart, whichever provider they are by."""
    several_scales = bool(rows["scale_origin"].dropna().ne("default").any())
    labels = []
    for row in rows.to_dict("records"):
        label = format_label(rows, row["format"], row["revision"], default_revisions)
        if several_scales and not pd.isna(row["scale_origin"]):
            label += f", scale {row['scale_origin']}"
        if not pd.isna(row["latent_scale"]) and row["latent_scale"] != 1:
            label += f", latent × {row['latent_scale']:g}"
        labels.append(label)
    return rows.assign(label=pd.Series(labels, index=rows.index, dtype="string"))


def of_one_provider(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are ok, by reference where it is there, else by the first provider."""
    ok = rows[rows["status"] == "ok"]
    providers = list(ok["provider"].dropna().unique())
    chosen = "reference" if "reference" in providers else next(iter(providers), None)
    return ok[ok["provider"] == chosen] if chosen else ok


def shown_sources(rows: pd.DataFrame) -> list[str]:
    """Every file and layer of a model, and of every synthetic kind the source whose sigma is nearest to 1."""
    chosen = []
    for kind, group in rows.groupby("kind", sort=False):
        if kind in ("file", "model"):
            chosen += list(group["data"].unique())
        else:
            distances = group["sigma"].astype(float).map(lambda sigma: max(sigma, 1 / sigma))
            chosen.append(str(group["data"].iloc[int(distances.to_numpy().argmin())]))
    return chosen
