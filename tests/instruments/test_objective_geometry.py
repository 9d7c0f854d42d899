"""The geometry of a head's rows, on rows whose angles and scores are known by construction."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from families import FAMILIES, PAIRS, make_model, make_signal, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

import reward_lens as rl
from reward_lens.errors import CapabilityError, NumericsError
from reward_lens.evidence import Evidence, GaugeStatus, Tier, Units
from reward_lens.instruments.objectives import objective_geometry

WIDTH = 32
MANY = [
    (f"Question {k}: what is {k} plus {k * 7}?", f"It is {k * 8}.", f"I would say {k}, or more.")
    for k in range(18)
]


def with_rows(rows, family="llama"):
    """A signal whose head has these rows."""
    model = make_model(family, num_labels=len(rows))
    with torch.no_grad():
        model.score.weight.copy_(torch.as_tensor(np.stack(rows)))
    return rl.wrap_hf_model(model, make_tokenizer())


def axis(k, size=1.0):
    row = np.zeros(WIDTH, dtype=np.float32)
    row[k] = size
    return row


def test_angles_on_paper():
    tilted = axis(0, math.cos(math.pi / 3)) + axis(2, math.sin(math.pi / 3))
    ev = objective_geometry(with_rows([axis(0, 3), axis(1, 0.1), tilted, -axis(1), axis(0)]))
    expected = np.eye(5)
    for a, b, cosine in ((0, 2, 0.5), (0, 4, 1), (1, 3, -1), (2, 4, 0.5)):
        expected[a, b] = expected[b, a] = cosine
    np.testing.assert_allclose(ev.value, expected, atol=1e-6)
    assert (np.diag(ev.value) == 1).all()
    np.testing.assert_allclose(ev.tables["rows"]["length"], [3, 0.1, 1, 1, 1], rtol=1e-6)


def test_what_the_evidence_says_of_itself():
    ev = objective_geometry(make_signal("llama", num_labels=3))
    assert ev.value.name == "cosine"
    assert ev.value.dims == ("row", "row2")
    assert list(ev.value.row.values) == ["criterion:0", "criterion:1", "criterion:2"]
    assert ev.gauge is GaugeStatus.RAW_ONLY
    assert ev.units is Units.ANGLE
    assert ev.tier is Tier.OBSERVATIONAL
    assert ev.provenance.cost_forwards == 0
    assert "scores" not in ev.tables
    assert "row mean" not in ev.receipt()
    assert Evidence.from_dict(ev.to_dict()) == ev
    assert not ev.value.values.flags.writeable


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_each_row(family):
    model = make_model(family, num_labels=3)
    signal = rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)
    ev = objective_geometry(signal, PAIRS)
    items = [(p, r) for side in (1, 2) for p, r in ((x[0], x[side]) for x in PAIRS)]
    scores = np.stack(
        [signal.score(items, readout=f"criterion:{k}").value.values for k in range(3)]
    ).astype(float)
    expected = np.corrcoef(scores)
    table = ev.tables["scores"].set_index(["row", "row2"])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        key = (f"criterion:{a}", f"criterion:{b}")
        assert table.loc[key, "correlation"] == pytest.approx(expected[a, b], abs=1e-5)
        assert table.loc[key, "cosine"] == float(ev.value.sel(row=key[0], row2=key[1]))
        assert ev.interval(f"correlation[{key[0]}, {key[1]}]").n == 2 * len(PAIRS)
    np.testing.assert_allclose(ev.tables["rows"]["mean_score"], scores.mean(1), atol=1e-5)
    assert ev.provenance.cost_forwards == 2 * len(PAIRS)


@pytest.mark.parametrize("position", ["last", "first", "mean"])
def test_scores_are_read_where_asked(position):
    signal = make_signal("llama", num_labels=2)
    ev = objective_geometry(signal, PAIRS, position=position)
    items = [(p, r) for side in (1, 2) for p, r in ((x[0], x[side]) for x in PAIRS)]
    a, b = (
        signal.score(items, readout=f"criterion:{k}", position=position).value.values.astype(float)
        for k in range(2)
    )
    np.testing.assert_allclose(ev.tables["rows"]["mean_score"], [a.mean(), b.mean()], atol=1e-5)
    assert ev.subject.notes["position"] == position
    if position != "first":  # every text begins with the same token
        assert ev.uncertainty[0].estimate == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-4)


def test_costs_have_the_geometry_of_rewards():
    model = make_model("llama", num_labels=2)
    reward, cost = (rl.wrap_hf_model(model, make_tokenizer(), sign=s) for s in (1.0, -1.0))
    a, b = (objective_geometry(s, MANY) for s in (reward, cost))
    np.testing.assert_array_equal(a.value, b.value)
    assert a.uncertainty[0].estimate == pytest.approx(b.uncertainty[0].estimate, abs=1e-12)
    np.testing.assert_array_equal(
        a.tables["rows"]["mean_score"], -b.tables["rows"]["mean_score"].to_numpy()
    )


def test_equal_and_opposite_rows_correlate_perfectly():
    row = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32)
    other = np.random.default_rng(1).normal(size=WIDTH).astype(np.float32)
    ev = objective_geometry(with_rows([row, 2 * row, -row, other]), MANY)
    table = ev.tables["scores"].set_index(["row", "row2"])
    for a, b, sign in ((0, 1, 1), (0, 2, -1), (1, 2, -1)):
        line = table.loc[(f"criterion:{a}", f"criterion:{b}")]
        assert line["correlation"] == pytest.approx(sign, abs=1e-6)
        assert line["cosine"] == pytest.approx(sign, abs=1e-6)
    mixed = table.loc[("criterion:0", "criterion:3")]
    assert mixed["low"] < mixed["correlation"] < mixed["high"]


def test_within_prompt_ignores_what_a_prompt_adds():
    """Both responses alike: all that varies is the prompt's part, which centring removes."""
    signal = make_signal("llama", num_labels=2)
    same = [(p, a, a) for p, a, _ in MANY]
    plain = objective_geometry(signal, same).uncertainty[0]
    centred = objective_geometry(signal, same, within_prompt=True).uncertainty[0]
    assert np.isfinite(plain.estimate)
    assert np.isnan(centred.estimate)
    assert "does not vary within any lineage" in centred.note


def test_rows_of_one_lineage_are_one_cluster():
    signal = make_signal("llama", num_labels=2)
    ev = objective_geometry(signal, [("one prompt", a, b) for _, a, b in MANY])
    (interval,) = ev.uncertainty
    assert interval.clusters == 1
    assert np.isnan(interval.low)
    assert "fewer than three lineages" in interval.note


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.05, 50), order=st.permutations(range(3)))
def test_neither_the_rows_scale_nor_their_order_matters(scale, order):
    rows = [np.random.default_rng(k).normal(size=WIDTH).astype(np.float32) for k in range(3)]
    plain = _COSINES.setdefault(0, objective_geometry(with_rows(rows)).value.values)
    changed = objective_geometry(with_rows([np.float32(scale) * rows[k] for k in order]))
    np.testing.assert_allclose(changed.value, plain[np.ix_(order, order)], atol=1e-6)


_COSINES: dict[int, np.ndarray] = {}


def test_a_scalar_head_is_refused():
    with pytest.raises(CapabilityError, match=r"has 1: there is nothing to compare it with"):
        objective_geometry(make_signal("llama"))


def test_a_row_of_zeros_is_refused_by_name():
    rows = [axis(0), np.zeros(WIDTH, dtype=np.float32), axis(1)]
    with pytest.raises(NumericsError, match="the row of criterion:1 is all zeros"):
        objective_geometry(with_rows(rows))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_trunk_in_half_precision(dtype):
    model = make_model("llama", dtype=dtype, num_labels=3)
    ev = objective_geometry(rl.wrap_hf_model(model, make_tokenizer()), PAIRS)
    weight = model.score.weight.detach().double()
    unit = weight / weight.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(ev.value, unit @ unit.T, atol=1e-12)
    assert np.isfinite(ev.tables["scores"]["correlation"]).all()
