"""Limits that a check in continuous integration holds measurements to, such as ``accuracy=0.7``.

No torch: limits can be judged on evidence read from a file or a store.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, Interval

#: Exit codes: every limit kept; one or more not kept, or not to be judged. Limits that cannot be
#: read, or that name nothing, are usage errors: the command exits 2.
KEPT, BROKEN = 0, 1

_BOUNDS = ("low", "high", "estimate")
_BIAS = "bias."
_BATTERY = "bias_battery"
_NO_BATTERY = "{!r} needs the bias battery, which was not run; run it as well (biases above 0)"
_COLUMNS = ["family", "name", "edit"]  # of its table of effects: what a bias may be called by
#: Intervals that every audit has, whatever the model and the pairs.
_EVERY_AUDIT = ("accuracy", "length.slope", "length.correlation", "length.whole_text",
                "length.prompt", "margin", "ece", "overconfidence")  # fmt: skip
_HOW = (
    "write NAME=NUMBER, such as accuracy=0.7, accuracy.low=0.65 (lower bound of its interval), "
    "accuracy[subset=NAME]=0.6, EVIDENCE/NAME=NUMBER or bias.length=0.2"
)


@dataclass(frozen=True)
class Threshold:
    """One limit.

    Attributes
    ----------
    metric : str
        See :func:`judge`.
    limit : float
    over : bool
        Whether it is broken by a value above the limit (else by one below it).
    """

    metric: str
    limit: float
    over: bool

    def __str__(self) -> str:
        return f"{self.metric} not {'over' if self.over else 'under'} {self.limit:g}"


@dataclass(frozen=True)
class Judged:
    """One limit and what was found.

    Attributes
    ----------
    threshold : Threshold
    value : float
        What was compared with the limit; NaN where there is none.
    interval : Interval
        Where it comes from.
    source : str
        Name of the evidence.
    passed : bool
        A value at the limit keeps it; one that is NaN does not.
    reach : tuple of float
        What the value can be by the interval, ``(least, largest)``; of a bias, over all effects
        under its name. Of a limit on a bound of the interval, the bound twice.
    """

    threshold: Threshold
    value: float
    interval: Interval
    source: str
    passed: bool
    reach: tuple[float, float]

    @property
    def certain(self) -> bool:
        """Whether all that the interval holds is on the same side of the limit as the value."""
        if any(map(math.isnan, (self.value, *self.reach))):
            return False
        limit = self.threshold.limit
        sides = [(x <= limit if self.threshold.over else x >= limit) for x in self.reach]
        return all(side == self.passed for side in sides)

    @property
    def doubt(self) -> str:
        """Why it is not certain, in words; nothing where it is, or where there is no value."""
        if self.certain or math.isnan(self.value):
            return ""
        if any(map(math.isnan, self.reach)):
            return "CANNOT TELL: there is no interval"
        far = self.reach[self.threshold.over == self.passed]
        side = "beyond" if self.passed else "within"
        return f"CANNOT TELL: the interval reaches {far:.4g}, {side} the limit"

    def __str__(self) -> str:
        i, t = self.interval, self.threshold
        found = f"{t.metric} = {self.value:.4g}"
        about = f"{self.source}: {i.name} {i.estimate:.4g} [{i.low:.4g}, {i.high:.4g}], n {i.n}"
        why = f"; {i.note or 'no number'}" if math.isnan(self.value) else ""
        word = "over" if t.over else "under"
        doubt = f"; {self.doubt}" if self.doubt else ""
        if self.passed:
            return f"kept: {found}, not {word} {t.limit:g} ({about}){doubt}"
        verb = "cannot be judged" if math.isnan(self.value) else f"is {word} {t.limit:g}"
        return f"broken: {found} {verb} ({about}{why}){doubt}"


def parse_thresholds(under: Iterable[str] = (), over: Iterable[str] = ()) -> tuple[Threshold, ...]:
    """Read limits as they are written on a command line.

    Parameters
    ----------
    under, over : iterable of str
        Each ``NAME=NUMBER``; what breaks by being below, and by being above.

    Raises
    ------
    DataError
        Naming the one that cannot be read, or is given twice.
    """
    given = [(text, kind) for kind, texts in ((False, under), (True, over)) for text in texts]
    found: dict[tuple[str, bool], Threshold] = {}
    for text, kind in given:
        option = "--fail-over" if kind else "--fail-under"
        name, sign, number = text.rpartition("=")  # names of subsets may hold the sign too
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not sign or not name.strip() or not math.isfinite(limit):
            raise DataError(f"{option} {text!r} is no limit: {_HOW}")
        key = (name.strip(), kind)
        if key in found:
            raise DataError(f"{option} names {key[0]!r} twice; give it once")
        found[key] = Threshold(key[0], limit, kind)
    return tuple(found.values())


def check_names(thresholds: Iterable[Threshold], *, biases: bool = True) -> None:
    """Refuse before any work what cannot name anything that an audit measures.

    Most names depend on what the model offers and on the pairs, and can only be told once it is
    measured; misspelt names of what every audit has, and names of biases, can be told beforehand.

    Parameters
    ----------
    thresholds : iterable of Threshold
    biases : bool
        Whether the bias battery is to be run.

    Raises
    ------
    DataError
        Naming the one, and what it is near to.
    """
    for threshold in thresholds:
        metric = threshold.metric
        plain, _, bound = metric.rpartition(".")
        forms = (metric, plain) if bound in _BOUNDS else (metric,)
        if metric.startswith(_BIAS):
            if not biases:
                raise DataError(_NO_BATTERY.format(metric))
            known = [_BIAS + name for name in _bias_names()]
            if not any(form in known for form in forms):
                raise DataError(_nothing(metric, known))
            continue
        name = forms[-1].partition("[")[0].rpartition("/")[2]
        if name not in _EVERY_AUDIT and difflib.get_close_matches(name, _EVERY_AUDIT, 1, 0.8):
            raise DataError(_nothing(metric, _EVERY_AUDIT))


def _bias_names() -> list[str]:
    """Every name that an effect of the battery can have: of families, edits and labels."""
    from reward_lens.data.edits import EDITS, end_token
    from reward_lens.data.templates import CONTRASTS

    edits = [n for e in (*EDITS, end_token("")) for n in (e.family, e.name, e.label)]
    return list(dict.fromkeys([*edits, *CONTRASTS, *CONTRASTS.values()]))


def judge(thresholds: Sequence[Threshold], evidences: Mapping[str, Evidence]) -> list[Judged]:
    """Hold measurements to limits.

    Parameters
    ----------
    thresholds : sequence of Threshold
        A metric is the name of an interval (``accuracy``, ``accuracy[subset=…]``,
        ``length.slope``, ``ece``), with the name of its evidence and a slash before it where
        several have one of that name; ``.low`` or ``.high`` behind it compares that bound instead
        of the estimate. ``bias.<family, edit or label>`` is the size of an effect of the bias
        battery, in median |margins|, the largest of those under that name: the least size that its
        interval holds, so that a few noisy rows break nothing; whether the battery names the
        effect does not matter. ``.estimate`` or ``.high`` (the largest size that it holds) behind
        it is stricter.
    evidences : mapping of name to Evidence

    Returns
    -------
    list of Judged
        In the order of the limits.

    Raises
    ------
    DataError
        If a metric names nothing, or several things; says what there is.
    """
    return [_judged(t, evidences) for t in thresholds]


def exit_code(judged: Iterable[Judged]) -> int:
    """:data:`KEPT` if every limit was, else :data:`BROKEN`."""
    return KEPT if all(j.passed for j in judged) else BROKEN


def _judged(threshold: Threshold, evidences: Mapping[str, Evidence]) -> Judged:
    value, source, interval, reach = _found(threshold, evidences)
    passed = value <= threshold.limit if threshold.over else value >= threshold.limit
    return Judged(threshold, value, interval, source, bool(passed), reach)


def _plain(i: Interval, bound: str) -> float:
    return {"": i.estimate, "estimate": i.estimate, "low": i.low, "high": i.high}[bound]


def _size(i: Interval, bound: str) -> float:
    """Size of an effect: estimated, or the least (by default) or largest that its interval has."""
    if bound == "estimate":
        return abs(i.estimate)
    if math.isnan(i.low) or math.isnan(i.high):
        return math.nan
    if bound == "high":
        return max(abs(i.low), abs(i.high))
    return 0.0 if i.low <= 0 <= i.high else min(abs(i.low), abs(i.high))


def _found(
    threshold: Threshold, evidences: Mapping[str, Evidence]
) -> tuple[float, str, Interval, tuple[float, float]]:
    """Value, evidence, interval and reach that a metric names; the whole name is tried first."""
    plain, _, bound = threshold.metric.rpartition(".")
    names = [(threshold.metric, "")] + ([(plain, bound)] if bound in _BOUNDS else [])
    for name, which in names:
        if name.startswith(_BIAS):
            sized = [(_size(i, which), s, i) for s, i in _biases(name, evidences)]
            if sized:
                most = max(sized, key=lambda one: -1.0 if math.isnan(one[0]) else one[0])
                ends = [[_size(i, end) for *_, i in sized] for end in ("", "high")]
                reach = [max((x for x in end if x == x), default=math.nan) for end in ends]
                return (*most, _reach(most[0], which, (reach[0], reach[1])))
            continue
        found = _named(name, evidences)
        if len(found) > 1:
            raise DataError(
                f"{name!r} is an interval of {' and of '.join(s for s, _ in found)}; say which, as "
                f"in {found[0][0]}/{name}"
            )
        if found:
            source, i = found[0]
            value = _plain(i, which)
            return value, source, i, _reach(value, which, (i.low, i.high))
    raise DataError(_unknown(threshold.metric, evidences))


def _reach(value: float, bound: str, ends: tuple[float, float]) -> tuple[float, float]:
    """What a value can be; a bound that is asked for by name is what it is."""
    return (value, value) if bound in ("low", "high") else ends


def _named(name: str, evidences: Mapping[str, Evidence]) -> list[tuple[str, Interval]]:
    every = [(s, i) for s, e in evidences.items() for i in e.uncertainty]
    return [(s, i) for s, i in every if name in (i.name, f"{s}/{i.name}")]


def _biases(name: str, evidences: Mapping[str, Evidence]) -> list[tuple[str, Interval]]:
    """Every effect under a name of the bias battery."""
    asked, found = name.removeprefix(_BIAS), []
    for source, evidence in evidences.items():
        if evidence.instrument == _BATTERY:
            table = evidence.tables["effects"]
            hits = [asked in names for names in table[_COLUMNS].itertuples(index=False)]
            found += [(source, evidence.interval(f"effect.{e}")) for e in table["edit"][hits]]
    return found


def _unknown(metric: str, evidences: Mapping[str, Evidence]) -> str:
    known = [i.name for e in evidences.values() for i in e.uncertainty]
    if metric.startswith(_BIAS):
        battery = [e for e in evidences.values() if e.instrument == _BATTERY]
        if not battery:
            return _NO_BATTERY.format(metric)
        table = battery[0].tables["effects"]
        known = [_BIAS + str(n) for c in _COLUMNS for n in dict.fromkeys(table[c])]
    return _nothing(metric, known)


def _nothing(metric: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(metric, known, n=3, cutoff=0.5)
    listed = near or list(dict.fromkeys(known))[:12]
    said = "did you mean" if near else "there are"
    return f"nothing measured is called {metric!r}; {said} {', '.join(listed) or 'no intervals'}"
