"""Two signals side by side: values that are known, flips that are planted, ties, clones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from families import PAIRS, make_model, make_signal, make_tokenizer
from scipy import stats

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import Evidence, GaugeStatus, Tier, Units
from reward_lens.evidence.store import EvidenceStore
from reward_lens.instruments.comparison import compare, comparison_parts
from reward_lens.organisms.gauge_twin import Rescaled, make_gauge_twin

MANY = [
    (f"Question {k}: what is {k} plus {k * 7}?", f"It is {k * 8}.", f"I would say {k}, or more.")
    for k in range(20)
]


@pytest.fixture(scope="module")
def llama():
    return make_signal("llama")


@pytest.fixture(scope="module")
def gpt2():
    return make_signal("gpt2")


@pytest.fixture(scope="module")
def found(llama, gpt2):
    return compare(llama, gpt2, MANY)


class Table(Rescaled):
    """A grader that looks scores up by response: another kind, without options."""

    def __init__(self, signal, scores):
        super().__init__(signal)
        self.scores = scores

    @property
    def fingerprint(self):
        return f"table of {sorted(self.scores.items())}"

    def score(self, items):
        found = self.signal.score(items)
        values = np.array([self.scores[x.response] for x in items])
        subject = dataclasses.replace(found.subject, signal=self.fingerprint)
        value = found.value.astype(float).copy(data=values)
        return dataclasses.replace(found, value=value, subject=subject)


def tables(llama, margins_a, margins_b):
    """Two graders with these margins on as many pairs, and the pairs."""
    n = len(margins_a)
    pairs = [(f"prompt {k}", f"good {k}", f"bad {k}") for k in range(n)]
    both = [
        Table(llama, {**{f"good {k}": float(m) for k, m in enumerate(margins)},
                      **{f"bad {k}": 0.0 for k in range(n)}})
        for margins in (margins_a, margins_b)
    ]  # fmt: skip
    return (*both, pairs)


def test_a_signal_agrees_with_itself_and_with_its_twin(llama):
    for other in (llama, make_gauge_twin(llama), Rescaled(llama, 2.5, 3.0)):
        value = compare(llama, other, MANY, depth=False).value
        assert value.sel(quantity="agreement") == 1
        assert value.sel(quantity="pearson") == pytest.approx(1, abs=1e-6)
        assert value.sel(quantity="spearman") == pytest.approx(1, abs=1e-2)
        assert value.sel(quantity="distance") < 1e-3


def test_the_opposite_agrees_nowhere(llama):
    found = compare(llama, Rescaled(llama, -1.0), MANY, depth=False)
    assert found.value.sel(quantity="agreement") == 0
    assert found.value.sel(quantity="distance") == pytest.approx(1)
    assert len(found.tables["flips"]) == 10
    assert len(compare(llama, Rescaled(llama, -1.0), MANY, depth=False,
                       examples=3).tables["flips"]) == 3  # fmt: skip


def test_numbers_on_paper(llama):
    a, b = np.array([2.0, 1.0, -1.0, 3.0, 0.5]), np.array([1.0, -2.0, -1.0, 1.0, 4.0])
    one, other, pairs = tables(llama, a, b)
    found = compare(one, other, pairs)
    assert found.value.sel(quantity="agreement") == pytest.approx(4 / 5)
    assert found.value.sel(quantity="pearson") == pytest.approx(
        a @ b / math.sqrt((a @ a) * (b @ b))
    )
    centred = [np.concatenate([m / 2, -m / 2]) for m in (a, b)]
    assert found.value.sel(quantity="spearman") == pytest.approx(stats.spearmanr(*centred)[0])
    row = found.tables["agreement"].iloc[0]
    assert (row["accuracy_a"], row["accuracy_b"]) == (0.8, 0.6)
    assert row["difference"] == pytest.approx(0.2)
    assert (row["only_a"], row["only_b"], row["p"]) == (1, 0, 1.0)
    flip = found.tables["flips"].iloc[0]
    assert (flip["pair"], flip["a_prefers"]) == (as_pairs(pairs).ids[1], "chosen")
    assert (flip["prompt"], flip["chosen"], flip["rejected"]) == ("prompt 1", "good 1", "bad 1")
    sd_a, sd_b = (math.sqrt((m**2).sum() / 2 / 5) for m in (a, b))
    assert flip["margin_b"] == pytest.approx(-2 / sd_b)
    assert flip["confidence"] == pytest.approx(min(1 / sd_a, 2 / sd_b))
    assert "depth" not in found.tables


def test_flips_come_with_the_surest_first(llama):
    one, other, pairs = tables(llama, [1, 3, 2, -5.0], [-1, -3, -2, -5.0])
    flips = compare(one, other, pairs).tables["flips"]
    assert list(flips["chosen"]) == ["good 1", "good 2", "good 0"]
    assert (np.diff(flips["confidence"]) < 0).all()


def test_ties_count_half_and_both_tying_is_agreement(llama):
    one, other, pairs = tables(llama, [1.0, 0.0, 0.0, -1.0], [1.0, 0.0, 2.0, 1.0])
    found = compare(one, other, pairs)
    assert found.value.sel(quantity="agreement") == pytest.approx(2.5 / 4)
    row = found.tables["agreement"].iloc[0]
    assert (row["ties_of_one"], row["ties_of_both"]) == (1, 1)
    assert list(found.tables["pairs"]["agreement"]) == ["agree", "agree", "one ties", "flip"]
    assert "1 ties, counted half" in found.interval("agreement").note


def test_a_grader_that_says_nothing_is_no_crash(llama):
    one, other, pairs = tables(llama, [1.0, 2.0, -1.0, 1.0], np.zeros(4))
    found = compare(one, other, pairs)
    assert np.isnan(found.value.sel(quantity="angle"))
    assert found.value.sel(quantity="agreement") == 0.5
    assert len(found.tables["flips"]) == 0
    assert "do not vary" in found.interval("pearson").note


def test_what_the_evidence_says_of_itself(found, llama, gpt2):
    assert found.value.dims == ("quantity",)
    assert found.gauge is GaugeStatus.INVARIANT
    assert found.tier is Tier.OBSERVATIONAL
    assert found.quantity_units["agreement"] is Units.PROBABILITY
    assert found.quantity_units["spearman"] is Units.RANK
    assert found.subject.signal == f"{llama.fingerprint} and {gpt2.fingerprint}"
    assert found.provenance.cost_forwards == 8 * len(MANY)
    assert len(found.provenance.parents) == 5
    assert [i.name for i in found.uncertainty] == [
        "agreement", "pearson", "spearman", "angle", "distance", "accuracy_difference"
    ]  # fmt: skip
    assert Evidence.from_dict(found.to_dict()) == found


def test_depth_profiles_are_the_lens_in_shares(found, llama):
    depth = found.tables["depth"]
    assert set(depth["signal"]) == {"a", "b"}
    assert (depth.loc[depth["fraction"] == 1, "median_share"] == 1).all()
    curve = rl.lens(llama, MANY).value.sel(reading="frozen").values
    median = np.median(curve / curve[:, -1:], axis=0)
    np.testing.assert_allclose(depth.loc[depth["signal"] == "a", "median_share"], median)


def test_parts_are_measured_once_and_fit_into_a_store(found, llama, gpt2, tmp_path):
    parts = comparison_parts(llama, gpt2, MANY)
    again = compare(llama, gpt2, MANY, parts=parts)
    np.testing.assert_array_equal(again.value, found.value)
    assert again.provenance.cost_forwards == 0
    store = EvidenceStore(tmp_path / "evidence.db")
    for one in (*parts.evidence, again):
        store.append(one)
    assert {e.instrument for e in parts.evidence} == {"score", "effective_angle", "lens"}
    with pytest.raises(DataError, match="measured on other pairs"):
        compare(llama, gpt2, MANY[:5], parts=parts)
    with pytest.raises(DataError, match="measured on other signals"):
        compare(gpt2, llama, MANY, parts=parts)


def test_lineages_that_share_a_text_count_once(llama, gpt2):
    twice = [*MANY[:4], *((p.upper(), a, b) for p, a, b in MANY[:2])]
    joined = compare(llama, gpt2, twice, depth=False)
    kept = compare(llama, gpt2, twice, depth=False, clones="keep")
    assert joined.interval("agreement").clusters == 4
    assert kept.interval("agreement").clusters == 6
    told = joined.tables["conditions"].set_index("condition")["value"]
    assert told["pairs that repeat another"] == "2"
    assert told["lineages joined because they share a text"] == "2"
    with pytest.raises(DataError, match="clones='drop'"):
        compare(llama, gpt2, twice, clones="drop")


def test_subsets_are_told_apart_and_their_p_values_adjusted(llama):
    margins = np.r_[np.ones(12), -np.ones(12)]
    one, other, pairs = tables(llama, margins, -margins)
    rows = [
        {"prompt": p, "chosen": a, "rejected": b, "subset": "x" if k < 12 else "y"}
        for k, (p, a, b) in enumerate(pairs)
    ]
    table = compare(one, other, rows).tables["agreement"].set_index("group")
    assert table.loc["x", "difference"] == 1
    assert table.loc["y", "difference"] == -1
    assert table.loc["x", "p"] == pytest.approx(2 / 2**12)
    assert table.loc["x", "p_adjusted"] == pytest.approx(4 / 2**12)
    assert table.loc["all", "p_adjusted"] == table.loc["all", "p"]


def test_rows_of_heads_by_readout():
    multi = rl.wrap_hf_model(make_model("llama", num_labels=3), make_tokenizer())
    found = compare(multi, multi, PAIRS, readout=("reward", "criterion:1"))
    assert found.subject.readout == "reward and criterion:1"
    assert found.subject.notes["a"]["readout_note"] == "legacy row mean of 3 objectives"


def test_options_a_grader_does_not_know_are_refused(llama):
    one, _, pairs = tables(llama, [1.0, 2.0], [1.0, 2.0])
    with pytest.raises(CapabilityError, match="position='last': the score of"):
        compare(llama, one, pairs, position="last")


def test_a_subset_called_all_does_not_take_the_place_of_all_pairs(llama):
    margins = np.r_[np.ones(6), -np.ones(12)]
    one, other, pairs = tables(llama, np.ones(18), margins)
    rows = [
        {"prompt": p, "chosen": a, "rejected": b, **({} if k < 6 else {"subset": "z"})}
        for k, (p, a, b) in enumerate(pairs)
    ]
    found = compare(one, other, rows, depth=False)
    table = found.tables["agreement"]
    assert list(table["group"]) == ["all", "subset=all", "z"]
    assert list(table["pairs"]) == [18, 6, 12]
    assert list(table["agreement"]) == pytest.approx([1 / 3, 1, 0])
    assert found.interval("agreement").n == 18
    assert found.interval("agreement[subset=all]").n == 6
