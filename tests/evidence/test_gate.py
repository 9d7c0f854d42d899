"""The gate between two signals' numbers, and the conversions that lead through it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.errors import EvidenceError, GaugeError, NumericsError, RewardLensError
from reward_lens.evidence import Evidence, GaugeStatus, Provenance, Subject, Tier, Units
from reward_lens.evidence.conversions import in_prompt_sds, in_ranks, in_shares, prompt_sd
from reward_lens.evidence.gate import check_comparable, difference

RNG = np.random.default_rng(0)
CHOSEN, REJECTED = RNG.normal(size=6), RNG.normal(size=6)
PROMPTS = ["p", "p", "q", "r", "s", "t"]


def evidence(value, signal="one", **changes):
    fields = {
        "instrument": "preference",
        "version": "1",
        "subject": Subject(signal, "data", "reward"),
        "tier": Tier.OBSERVATIONAL,
        "gauge": GaugeStatus.INVARIANT,
        "units": Units.REWARD,
        "provenance": Provenance({"torch": "2"}, "float32", "cpu", "sdpa", parameters={"k": 1}),
    }
    return Evidence(value=value, **{**fields, **changes})


def margins(scale=1.0, shift=0.0, **changes):
    """Preference of six pairs whose prompts' shifts and whose scale can be changed."""
    shifts = shift * np.arange(6)
    chosen, rejected = scale * CHOSEN + shifts, scale * REJECTED + shifts
    value = xr.DataArray(
        np.stack([chosen, rejected, chosen - rejected]),
        dims=("side", "pair"),
        coords={"side": ["chosen", "rejected", "margin"], "pair": list("abcdef"),
                "lineage": ("pair", list("pqrstu"))},
        name="score",
    )  # fmt: skip
    return evidence(value, **changes)


def scores(scale=1.0, shift=0.0, **changes):
    """Scores of six items, two of them of one prompt."""
    per_prompt = {p: k for k, p in enumerate(dict.fromkeys(PROMPTS))}
    values = scale * CHOSEN + shift * np.array([per_prompt[p] for p in PROMPTS])
    value = xr.DataArray(
        values,
        dims=("item",),
        coords={"item": list("abcdef"), "lineage": ("item", PROMPTS)},
        name="score",
    )
    return evidence(value, instrument="score", **changes)


def plain(signal="one", **changes):
    value = xr.DataArray(np.arange(3.0), dims=("x",), coords={"x": list("abc")}, name="v")
    return evidence(value, signal, **{"units": Units.SHARE, **changes})


def test_rewards_of_two_signals_are_not_subtracted_and_the_way_out_is_said():
    with pytest.raises(GaugeError, match="in reward units.*in_shares, in_ranks or in_prompt_sds"):
        margins() - margins(signal="two")


def test_rewards_of_one_signal_are():
    found = margins(scale=3.0) - margins(scale=1.0)
    np.testing.assert_allclose(found.value.sel(side="margin"), 2 * (CHOSEN - REJECTED))
    assert found.units is Units.REWARD


def test_raw_coordinates_are_refused_across_signals_only():
    one, other = (plain(s, gauge=GaugeStatus.RAW_ONLY) for s in ("one", "two"))
    with pytest.raises(GaugeError, match="raw coordinates.*effective_angle or compare"):
        one - other
    assert (one - one).gauge is GaugeStatus.RAW_ONLY


@pytest.mark.parametrize(
    ("frames", "said"),
    [((None, None), "no frame and no frame"), (("f", None), "frame f and no frame"),
     (("f", "g"), "frame f and frame g")],
)  # fmt: skip
def test_covariant_numbers_need_one_frame(frames, said):
    pair = [
        plain(s, gauge=GaugeStatus.COVARIANT, subject=Subject(s, "data", "reward", frame=f))
        for s, f in zip(("one", "two"), frames, strict=True)
    ]
    with pytest.raises(GaugeError, match=f"{said}.*fit_frame"):
        pair[0] - pair[1]


def test_one_frame_lets_covariant_numbers_through_and_stays_on_record():
    pair = [
        plain(s, gauge=GaugeStatus.COVARIANT, subject=Subject(s, "data", "reward", frame="f"))
        for s in ("one", "two")
    ]
    found = pair[0] - pair[1]
    assert found.gauge is GaugeStatus.COVARIANT
    assert found.subject.frame == "f"


def test_a_difference_names_both_and_has_no_interval():
    one, other = plain("one"), plain("two")
    found = one - other
    assert found.provenance.parents == (one.id, other.id)
    assert found.subject.signal == "one and two"
    assert found.uncertainty == ()
    assert found.value.dtype == np.float64
    assert Evidence.from_dict(found.to_dict()) == found


def test_units_are_never_mixed():
    with pytest.raises(GaugeError, match="v is in units of share in one and rank in the other"):
        plain() - plain(units=Units.RANK)


def test_one_quantity_in_reward_units_shuts_the_gate():
    value = xr.DataArray(
        np.zeros((2, 2)),
        dims=("quantity", "x"),
        coords={"quantity": ["effect", "share"], "x": ["a", "b"]},
        name="v",
    )
    units = {"effect": Units.REWARD, "share": Units.SHARE}
    one, other = (evidence(value, s, quantity_units=units) for s in ("one", "two"))
    with pytest.raises(GaugeError, match="effect is in reward units"):
        check_comparable(one, other)
    check_comparable(in_shares(one), in_shares(other))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tier": Tier.CAUSAL}, "tier 'observational' and 'causal'"),
        ({"instrument": "lens"}, "instrument 'preference v1' and 'lens v1'"),
        ({"subject": Subject("one", "other", "reward")}, "data 'data' and 'other'"),
    ],
)
def test_two_questions_have_no_difference(change, said):
    with pytest.raises(EvidenceError, match=said):
        difference(plain(), plain(**change))


def test_labels_have_to_be_the_same():
    other = plain()
    moved = dataclasses.replace(other, value=other.value.assign_coords(x=list("abd")))
    with pytest.raises(EvidenceError, match="their labels along 'x' differ"):
        plain() - moved


def test_only_evidence_is_subtracted():
    with pytest.raises(TypeError, match="unsupported operand"):
        plain() - 1.0


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.01, 100), shift=st.floats(-50, 50))
def test_converted_margins_know_no_scale_and_no_shift(scale, shift):
    for convert in (in_shares, in_ranks, in_prompt_sds):
        one, other = convert(margins()), convert(margins(scale, shift, signal="two"))
        np.testing.assert_allclose((one - other).value, 0, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.01, 100), shift=st.floats(-50, 50))
def test_converted_scores_know_no_scale_and_no_shift(scale, shift):
    for convert in (in_ranks, in_prompt_sds):
        one, other = convert(scores()), convert(scores(scale, shift, signal="two"))
        np.testing.assert_allclose(one.value, other.value, atol=1e-6)


def test_shares_are_of_the_median_margin():
    found = in_shares(margins())
    gap = CHOSEN - REJECTED
    np.testing.assert_allclose(found.value, gap / np.median(np.abs(gap)))
    assert found.units is Units.SHARE
    assert found.provenance.parents == (margins().id,)
    assert found.provenance.parameters["scale"] == pytest.approx(np.median(np.abs(gap)))


def test_prompt_sds_drop_and_count_prompts_of_one_response():
    found = in_prompt_sds(scores())
    sd = abs(CHOSEN[0] - CHOSEN[1]) / np.sqrt(2)
    half = (CHOSEN[0] - CHOSEN[1]) / 2 / sd
    np.testing.assert_allclose(found.value[:2], [half, -half])
    assert np.isnan(found.value[2:]).all()
    assert found.provenance.parameters["prompts_of_one_response"] == 4


def test_prompt_sd_is_pooled():
    assert prompt_sd([0, 2, 5, 5, 8], ["a", "a", "b", "b", "b"]) == pytest.approx(
        np.sqrt((2 + 6) / 3)
    )


def test_what_cannot_be_converted():
    with pytest.raises(GaugeError, match="holds scores of items, which a shift per prompt moves"):
        in_shares(scores())
    with pytest.raises(GaugeError, match="units of share, which need no conversion"):
        in_ranks(plain())
    with pytest.raises(GaugeError, match="does not say what the margins are: pass margins="):
        in_shares(plain(units=Units.REWARD, instrument="attribution"))
    with pytest.raises(GaugeError, match="not of the same signal, data and readout"):
        in_shares(plain(units=Units.REWARD), margins(signal="two"))
    flat = margins(scale=0.0)
    with pytest.raises(NumericsError, match=r"median \|margin\| is 0"):
        in_shares(flat)
    with pytest.raises(NumericsError, match="do not vary within any prompt"):
        in_prompt_sds(flat)
    with pytest.raises(NumericsError, match="every prompt has one response"):
        prompt_sd([1.0, 2.0], ["a", "b"])


def test_a_refusal_is_an_error_of_this_library():
    assert issubclass(GaugeError, RewardLensError)
