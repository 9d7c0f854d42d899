"""Instruments that are wrong in ways that have happened to others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

import reward_lens as rl


def without_norm(signal, pairs, **options):
    """A lens that reads the stream along the head and leaves the final norm out."""
    e = rl.lens(signal, pairs, **options)
    layers = signal.meta.n_layers
    w = signal.head()[0][0].double()
    sites = ["L0.resid_pre", *(f"L{k}.resid_post" for k in range(layers))]
    got = signal.capture([*pairs.chosen, *pairs.rejected], sites)
    rows = np.stack([(got[s].double() @ w).numpy() for s in sites])
    means = (rows[:, : len(pairs)] - rows[:, len(pairs) :]).mean(1)
    return with_table(e, "curve", lambda t: t.assign(mean_margin=[*means, *means]))


def writes_without_norm(signal, pairs, **options):
    """An attribution that projects the writes on the head and leaves the final norm out."""
    e = rl.attribution(signal, pairs, **options)
    w = signal.head()[0][0].double()
    names = e.tables["writes"]["write"].tolist()
    sites = [n for n in names if n == "embed" or n.endswith(("attn_out", "mlp_out"))]
    got = signal.capture([*pairs.chosen, *pairs.rejected], sites)
    n = len(pairs)
    found = {s: (got[s].double() @ w).numpy() for s in sites}
    rows = {}
    for name in names:
        margins = found[name][:n] - found[name][n:] if name in found else np.zeros(n)
        half = 2 * margins.std(ddof=1) / np.sqrt(n)
        rows[name] = (margins.mean(), margins.mean() - half, margins.mean() + half)
    columns = dict(zip(("mean", "low", "high"), np.array([rows[k] for k in names]).T, strict=True))
    return with_table(e, "writes", lambda t: t.assign(**columns))


def a_token_off(signal, pairs, **options):
    """A patch grid that exchanges the token before the one that is read."""
    return rl.patch_grid(signal, pairs, positions=-2, **options)


def a_layer_off(signal, pairs, **options):
    """A patch grid that names each component for the one of the layer before."""
    e = rl.patch_grid(signal, pairs, **options)
    numbers = ["mean", "low", "high"]

    def shifted(table):
        return pd.concat(
            part.assign(**{c: np.roll(part[c], 2) for c in numbers})
            for _, part in table.groupby("direction", sort=False)
        )

    return with_table(e, "components", shifted)


def with_table(e, name, change):
    """The same evidence with another table."""
    return dataclasses.replace(e, tables={**e.tables, name: change(e.tables[name])})


#: What is wrong -> the instrument, what is run in its place, and what its card says.
BROKEN = {
    "lens, the final norm left out": ("lens", without_norm, "times its size"),
    "attribution, the final norm left out": ("attribution", writes_without_norm, "times its size"),
    "patched a token off": ("patch_grid", a_token_off, "fewer than 90% of the rules were found"),
    "patched a layer off": ("patch_grid", a_layer_off, "fewer than 90% of the rules were found"),
}
