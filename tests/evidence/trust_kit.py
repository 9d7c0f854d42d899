"""Evidence of an instrument with effects known on paper, and scorecards read from it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.evidence import (
    Evidence,
    GaugeStatus,
    Place,
    Prediction,
    Provenance,
    Reading,
    Scorecard,
    Subject,
    Tier,
    Trial,
    Units,
    observables,
)

N = 64
SD = 2.0
_MARGINS = np.linspace(-1, 1, N)
#: Margins of N pairs whose SD is exactly SD.
MARGINS = _MARGINS * (SD / _MARGINS.std(ddof=1))
SITES = ("L0.attn_out", "L0.mlp_out", "L1.attn_out", "L1.mlp_out")
READING = Reading(
    "components",
    ("direction", "component"),
    where={"direction": "noise"},
    site="component",
    margins=("pairs", "margin"),
)
DIRECTIONS = {"direction": ["noise"] * len(SITES) + ["denoise"] * len(SITES)}


def grid(effects=None, *, half=0.1, n=N, **changes):
    """A patch grid whose components have these effects, in SDs of the margin; 0 elsewhere."""
    means = np.array([(effects or {}).get(s, 0.0) * SD for s in SITES] * 2)
    table = pd.DataFrame(
        {
            **DIRECTIONS,
            "component": list(SITES) * 2,
            "mean": means,
            "low": means - half,
            "high": means + half,
        }
    )
    subject = {"signal": "sig", "data": "dat", "readout": "reward", "interventions": ("patch",),
               "frame": None, "notes": {"position": "native"}}  # fmt: skip
    ran = {"versions": {}, "dtype": "float32", "device": "cpu", "kernel": "sdpa", "seeds": (),
           "parents": (), "cost_forwards": 1.0,
           "parameters": {"by": "component", "batch_tokens": 64}}  # fmt: skip
    fields = {
        "instrument": "patch_grid",
        "version": "1",
        "value": xr.DataArray(np.zeros(n), dims="pair", name="effect"),
        "tier": Tier.CAUSAL,
        "gauge": GaugeStatus.INVARIANT,
        "units": Units.REWARD,
        "tables": {"components": table, "pairs": pd.DataFrame({"margin": MARGINS})},
    }
    for name, new in changes.items():
        for part in (subject, ran, fields):
            if name in part:
                part[name] = new
    return Evidence(subject=Subject(**subject), provenance=Provenance(**ran), **fields)


@cache
def planted(k, place, dose, *, read=None, **changes):
    """Evidence and trial of the k-th organism; ``read`` is what is read of the dose."""
    read = dose if read is None else read
    name = f"organism-{k}"
    found = grid({place: read} if place else {SITES[0]: read}, data=f"data-{k}", signal=name,
                 interventions=("planted rule", "patch"), **changes)  # fmt: skip
    size = READING.sizes(found, SD, ("attn_out", "mlp_out"))
    label = f"noise {place}" if place else ""
    return found, {
        "organism": name,
        "dose": dose,
        "place": label,
        "reading": size[label] if label else max(size.values()),
        "evidence": found.id,
        "truth": dose * SD if place else np.nan,
        "covered": bool(abs(read - dose) * SD <= 0.1) if place else None,
    }


def organisms(
    *, missed=0, false=0, doses=(0.25, 0.5, 1.0), per_dose=20, nulls=60, kind="write", sites=SITES
):
    """Evidence and trials: from 0.5 SD on all is found (but ``missed``), at 0.25 nothing."""
    evidence, trials = [], []
    for dose in doses:
        for j in range(per_dose):
            read = 0.1 if dose < 0.3 or j < missed else dose
            made = planted(f"{dose}-{j}", sites[j % len(sites)], dose, read=read, half=10.0)
            evidence.append(made[0])
            trials.append(Trial(kind="write", **{**made[1], "covered": True}))  # wide intervals
    for j in range(nulls):
        e, t = planted(f"null-{j}", "", 0.0, read=0.6 if j < false else 0.02)
        evidence.append(e)
        trials.append(Trial(kind="write", **t))
    return evidence, trials


def scorecard(trials, **changes):
    return Scorecard(
        **{
            "instrument": "patch_grid",
            "version": "1",
            "signal": "sig",
            "readout": "reward",
            "dtype": "float32",
            "site_kinds": ("attn_out", "mlp_out"),
            "n_pairs": (48, 96),
            "observables": observables(grid()),
            "reading": READING,
            "margin_sd": SD,
            "threshold": 0.3,
            "fixed_on": "concept",
            "trials": tuple(trials),
            **changes,
        }
    )


def calibrated(store, **changes):
    """Append organisms and a card that passes, with changes; returns the card."""
    evidence, trials = organisms()
    card = scorecard(trials, **changes)
    store.append_all([*evidence, card])
    return card


def prediction(comparison="above", bound=1.0, upper=None, component="L1.mlp_out", **changes):
    row = {"direction": "noise", "component": component}
    return Prediction(
        **{
            "claim": "the last MLP carries the margin",
            "instrument": "patch_grid",
            "place": Place(table="components", row=row),
            "comparison": comparison,
            "bound": bound,
            "upper": upper,
            "signal": "sig",
            "data": "dat",
            **changes,
        }
    )


def card_of(store):
    return store.get(store.places("scorecard")[0].id)


def said(store, e):
    return "\n".join(store.standing(e.id).because)
