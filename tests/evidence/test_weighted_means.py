from __future__ import annotations

import numpy as np
import pytest

from reward_lens.errors import DataError
from reward_lens.evidence.intervals import accuracy, cluster_t
from reward_lens.evidence.weighted_means import weighted_mean


def test_one_group_is_the_clustered_accuracy():
    rng = np.random.default_rng(0)
    margins = rng.normal(0.5, 1, 80)
    lineage = np.repeat([f"l{k}" for k in range(40)], 2)
    one = weighted_mean("a", margins > 0, np.full(80, "g"), {"g": 1.0}, lineage)
    other, _ = accuracy("a", margins, lineage)
    for name in ("estimate", "low", "high", "se", "n_effective"):
        assert getattr(one, name) == pytest.approx(getattr(other, name)), name


def test_groups_are_weighted_and_not_pooled():
    y = np.array([1, 1, 1, 0, 0, 1.0])
    group = np.array(["a", "a", "a", "a", "b", "b"])
    found = weighted_mean("m", y, group, {"a": 0.2, "b": 0.8}, [str(k) for k in range(6)])
    assert found.estimate == pytest.approx(0.2 * 0.75 + 0.8 * 0.5)
    assert found.low < found.estimate < found.high


def test_intervals_cover():
    rng = np.random.default_rng(1)
    truth = np.array([0.9, 0.4])
    weights = {"0": 0.3, "1": 0.7}
    inside, runs = 0, 200
    for _ in range(runs):
        group = np.repeat([0, 1], [120, 60])
        lineage = np.array([f"{g}-{k // 3}" for k, g in enumerate(group)])
        shared = rng.random(len(group))
        u = np.where(rng.random(len(group)) < 0.5, shared[(np.arange(len(group)) // 3) * 3], shared)
        found = weighted_mean("m", u < truth[group], group.astype(str), weights, lineage)
        inside += found.low <= 0.3 * 0.9 + 0.7 * 0.4 <= found.high
    assert 0.90 <= inside / runs <= 0.99


def test_all_right_counts_the_lineages():
    found = weighted_mean(
        "m", np.ones(6, bool), ["a"] * 3 + ["b"] * 3, {"a": 0.5, "b": 0.5}, list("112233")
    )
    assert (found.method, found.n_effective) == ("Clopper–Pearson", 3)
    assert found.low == pytest.approx(cluster_t("m", np.ones(3, bool), list("123")).low)


def test_groups_without_visible_error_are_counted():
    y, lineage = [1.0, 0.0, 1.0, 1.0], ["p", "q", "r", "r"]
    found = weighted_mean("m", y, list("aabb"), {"a": 0.5, "b": 0.5}, lineage)
    assert "1 groups of one lineage, whose error is not seen" in found.note
    none = weighted_mean("m", [1.0, 0.0], list("ab"), {"a": 0.5, "b": 0.5}, ["p", "q"])
    assert none.estimate == 0.5
    assert np.isnan(none.low)
    assert "no error can be seen" in none.note


def test_weights_and_groups_must_match():
    with pytest.raises(DataError, match=r"weights are for \['a'\], rows are of \['a', 'b'\]"):
        weighted_mean("m", [1.0, 0.0], list("ab"), {"a": 1.0}, list("12"))
    with pytest.raises(DataError, match=r"row 1 has no group; .* \(1 of 2\)"):
        weighted_mean("m", [1.0, 0.0], ["a", None], {"a": 1.0}, list("12"))
    with pytest.raises(DataError, match="2 rows, 1 groups"):
        weighted_mean("m", [1.0, 0.0], ["a"], {"a": 1.0}, list("12"))
