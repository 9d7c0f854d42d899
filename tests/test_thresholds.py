"""Limits on measurements: how they are written, what they name, what breaks them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from reward_lens.errors import DataError
from reward_lens.evidence import (
    Evidence,
    GaugeStatus,
    Interval,
    Provenance,
    Subject,
    Tier,
    Units,
)
from reward_lens.thresholds import (
    BROKEN,
    KEPT,
    check_names,
    exit_code,
    judge,
    parse_thresholds,
)


def interval(name, estimate, low=None, high=None, note=""):
    low, high = (estimate - 0.1 if low is None else low), (estimate + 0.1 if high is None else high)
    return Interval(name, estimate, low, high, 0.95, 0.05, 40, 40.0, 40, "cluster-t", note)


def evidence(instrument, *intervals, **tables):
    return Evidence(
        value=xr.DataArray(np.zeros(1), dims=("x",), name="v"),
        instrument=instrument,
        version="1",
        subject=Subject("s", "d", "reward"),
        tier=Tier.OBSERVATIONAL,
        gauge=GaugeStatus.INVARIANT,
        units=Units.REWARD,
        provenance=Provenance({}, "float32", "cpu", "eager"),
        uncertainty=intervals,
        tables=tables,
    )


EFFECTS = pd.DataFrame(
    {
        "edit": ["restated/end", "trimmed/end", "flattery/start", "typos/whole"],
        "name": ["restated", "trimmed", "flattery", "typos"],
        "family": ["length", "length", "flattery", "noise"],
    }
)
FOUND = {
    "preference": evidence(
        "preference",
        interval("accuracy", 0.7),
        interval("accuracy[subset=a=b]", 0.5),
        interval("length.slope", -0.3),
    ),
    "style": evidence("style_accuracy", interval("length.slope", 0.1)),
    "reliability": evidence(
        "reliability_curve", interval("ece", math.nan, math.nan, math.nan, "too few")
    ),
    "biases": evidence(
        "bias_battery",
        interval("effect.restated/end", 0.1, -0.05, 0.25),
        interval("effect.trimmed/end", -0.3, -0.4, -0.2),
        interval("effect.flattery/start", 0.5),
        interval("effect.typos/whole", math.nan, math.nan, math.nan, "it applies nowhere"),
        effects=EFFECTS,
    ),
}


def judged(under=(), over=()):
    return judge(parse_thresholds(under, over), FOUND)


@pytest.mark.parametrize(
    ("under", "over", "passed"),
    [
        ("accuracy=0.69", None, True),
        ("accuracy=0.7", None, True),  # at the limit
        ("accuracy=0.71", None, False),
        ("accuracy.low=0.61", None, False),
        ("accuracy.high=0.75", None, True),
        (None, "accuracy=0.65", False),
        ("accuracy[subset=a=b]=0.5", None, True),
        ("preference/length.slope=-0.35", None, True),
        ("style/length.slope=0.2", None, False),
        (None, "bias.length=0.2", True),  # the larger of the two, whose interval ends at -0.2
        (None, "bias.length=0.19", False),
        (None, "bias.length.estimate=0.3", True),
        (None, "bias.length.estimate=0.29", False),
        (None, "bias.length.high=0.4", True),
        (None, "bias.restated=0", True),  # its interval holds 0
        (None, "bias.restated.estimate=0.05", False),
        (None, "bias.restated.high=0.2", False),
        (None, "bias.trimmed/end=0.15", False),
        ("ece=0", None, False),
        (None, "ece=1", False),  # what is not known is not kept
        (None, "bias.typos=9", False),
    ],
)
def test_limits(under, over, passed):
    (found,) = judged([under] if under else [], [over] if over else [])
    assert found.passed is passed
    assert exit_code([found]) == (KEPT if passed else BROKEN)


def test_order_and_exit_code():
    found = judged(["accuracy=0.6", "accuracy.low=0.9"], ["bias.flattery=1"])
    assert [j.passed for j in found] == [True, False, True]
    assert exit_code(found) == BROKEN
    assert exit_code(found[::2]) == KEPT
    assert exit_code([]) == KEPT


def test_what_is_said():
    kept, broken, unknown = judged(["accuracy=0.6"], ["bias.length=0.1", "ece=0.1"])
    assert str(kept) == (
        "kept: accuracy = 0.7, not under 0.6 (preference: accuracy 0.7 [0.6, 0.8], n 40)"
    )
    assert str(broken) == (
        "broken: bias.length = 0.2 is over 0.1 (biases: effect.trimmed/end -0.3 [-0.4, -0.2], n 40)"
    )
    assert "ece = nan cannot be judged" in str(unknown)
    assert "too few" in str(unknown)


@pytest.mark.parametrize("text", ["accuracy", "accuracy=", "=0.7", "accuracy=high", "accuracy=nan",
                                  "accuracy=inf", "accuracy<0.7"])  # fmt: skip
def test_what_is_no_limit(text):
    with pytest.raises(DataError, match=r"--fail-under '.*' is no limit: write NAME=NUMBER"):
        parse_thresholds([text])


def test_a_limit_is_given_once():
    parse_thresholds(["accuracy=0.5"], ["accuracy=0.9"])  # from both sides is fine
    with pytest.raises(DataError, match="--fail-over names 'accuracy' twice"):
        parse_thresholds([], ["accuracy=0.5", "accuracy=0.6"])


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("acuracy", "nothing measured is called 'acuracy'; did you mean accuracy"),
        ("zzz", "there are accuracy, accuracy.subset=a=b., length.slope, ece"),
        ("length.slope", "an interval of preference and of style; say which, as in preference/len"),
        ("bias.lenght", "did you mean bias.length"),
    ],
)
def test_what_names_nothing_or_several(metric, message):
    with pytest.raises(DataError, match=message):
        judged([f"{metric}=1"])


def test_biases_need_the_battery():
    with pytest.raises(DataError, match="'bias.length' needs the bias battery, which was not run"):
        judge(parse_thresholds([], ["bias.length=0.2"]), {"preference": FOUND["preference"]})


@pytest.mark.parametrize(
    ("under", "over", "doubt"),
    [
        ("accuracy=0.65", None, "CANNOT TELL: the interval reaches 0.6, beyond the limit"),
        ("accuracy=0.75", None, "CANNOT TELL: the interval reaches 0.8, within the limit"),
        ("accuracy=0.6", None, ""),
        ("accuracy=0.81", None, ""),
        (None, "accuracy=0.75", "CANNOT TELL: the interval reaches 0.8, beyond the limit"),
        ("accuracy.low=0.5", None, ""),  # the bound itself is what was asked about
        (None, "bias.restated=0.2", "CANNOT TELL: the interval reaches 0.25, beyond the limit"),
        (None, "bias.length=0.3", "CANNOT TELL: the interval reaches 0.4, beyond the limit"),
        (None, "bias.length=0.4", ""),
        (None, "bias.length=0.1", ""),
        (None, "bias.length.estimate=0.25", "CANNOT TELL: the interval reaches 0.2, within the li"),
    ],
)
def test_a_limit_inside_the_interval_is_said_to_be_in_doubt(under, over, doubt):
    (found,) = judged([under] if under else [], [over] if over else [])
    assert found.certain is not bool(doubt)
    assert found.doubt.startswith(doubt)
    assert str(found).endswith(f"; {found.doubt}" if doubt else ", n 40)")


def test_what_has_no_value_is_not_certain():
    (found,) = judged([], ["ece=1"])
    assert not found.certain
    assert found.doubt == ""  # it is broken, and says why


def test_names_that_can_be_told_beforehand_are_checked_beforehand():
    good = ["accuracy=1", "accuracy.low=1", "accuracy[subset=x]=1", "preference/length.slope=1",
            "applied.first=1", "bias.length=1", "bias.bold.end.high=1", "effect.bold.end=1",
            "bias.end_token=1"]  # fmt: skip
    check_names(parse_thresholds(good))
    for text, said in [
        ("acuracy=1", "called 'acuracy'; did you mean accuracy"),
        ("acuracy.low=1", "did you mean accuracy"),
        ("lenght.slope=1", "did you mean length.slope"),
        ("bias.lenght=1", "did you mean bias.length"),
    ]:
        with pytest.raises(DataError, match=said):
            check_names(parse_thresholds([text]))
    with pytest.raises(DataError, match="needs the bias battery, which was not run"):
        check_names(parse_thresholds(["bias.length=1"]), biases=False)
