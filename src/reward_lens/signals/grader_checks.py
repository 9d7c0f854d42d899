"""What the protocol promises, checked on a grader of any kind: a rule, a service, another model."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr

from reward_lens.data import Item
from reward_lens.errors import CapabilityError, RewardLensError
from reward_lens.evidence import Evidence, Units, read_jsonl, write_jsonl
from reward_lens.signals.check_report import ConformanceReport
from reward_lens.signals.grader_claims import claims
from reward_lens.signals.grader_probe import (
    NEARLY,
    Outcome,
    ProbedGrader,
    check,
    largest_gap,
    said,
    scores_of,
)
from reward_lens.signals.protocol import Capability, SignalMeta

_FACTS: Mapping[str, type] = MappingProxyType(
    {"meta": SignalMeta, "caps": Capability, "fingerprint": str}
)
_METHODS = ("readouts", "readout", "score")


@check("members", "all six", "an instrument that asks for it would crash")
def members(s: ProbedGrader) -> Outcome:
    """Everything the protocol names is there, of its type."""
    wrong = []
    for name in (*_FACTS, *_METHODS):
        try:
            found = getattr(s.signal, name)
        except Exception as error:
            absent = isinstance(error, AttributeError) and error.name == name
            wrong.append(f"no {name}" if absent else f"{name} raised {said(error)}")
            continue
        if name in _METHODS and not callable(found):
            wrong.append(f"{name} is a {type(found).__name__}: make it a method")
        elif name in _FACTS and not isinstance(found, _FACTS[name]):
            way_out = "make it a property" if callable(found) else f"give a {_FACTS[name].__name__}"
            wrong.append(f"{name} is a {type(found).__name__}: {way_out}")
    return not wrong, "; ".join(wrong) or ", ".join((*_FACTS, *_METHODS))


@check("capabilities", "a Capability with SCORES", "no instrument can tell what it may ask for")
def capabilities(s: ProbedGrader) -> Outcome:
    """Capabilities are ours, which print by name, and scoring is one of them."""
    caps = s.signal.caps
    return isinstance(caps, Capability) and Capability.SCORES in caps, str(caps)


@check(
    "fingerprint", "a text, the same before and after scoring",
    "results of one grader cannot be told from those of another, or found again",
)  # fmt: skip
def fingerprint(s: ProbedGrader) -> Outcome:
    """The fingerprint is stable."""
    before = s.signal.fingerprint
    s.scores(s.pairs)
    after = s.signal.fingerprint
    measured = repr(before) if before == after else f"{before!r}, then {after!r}"
    return isinstance(before, str) and bool(before.strip()) and before == after, measured


@check(
    "readouts", "distinct names, 'reward' among them, each found by name",
    "a number cannot be asked for by name, or one name means two numbers",
)  # fmt: skip
def readouts(s: ProbedGrader) -> Outcome:
    """Readouts have distinct names and are found by them."""
    names = [r.name for r in s.signal.readouts()]
    other = [n for n in names if s.signal.readout(n).name != n]
    sound = len(set(names)) == len(names) and "reward" in names and not other
    sound &= s.signal.readout().name == "reward"
    lost = f"; another one comes for {', '.join(map(repr, other))}" if other else ""
    return sound, ", ".join(map(repr, names)) + lost


@check("unknown readout", "CapabilityError", "a misspelt name gives another readout's numbers")
def unknown_readout(s: ProbedGrader) -> Outcome:
    """A readout that does not exist is refused."""
    try:
        found = s.signal.readout("no such readout")
    except CapabilityError:
        return True, "CapabilityError"
    except Exception as error:
        return False, said(error)
    return False, f"got {getattr(found, 'name', found)!r}"


@check(
    "evidence", "an Evidence: named floats with the one dimension item, one for each",
    "instruments, reports and files cannot take the scores",
)  # fmt: skip
def evidence(s: ProbedGrader) -> Outcome:
    """Scores come as evidence, a float for each item."""
    if not isinstance(s.evidence, Evidence):
        return False, f"score() returned a {type(s.evidence).__name__}"
    value: xr.DataArray = s.evidence.value
    sound = value.dims == ("item",) and value.dtype.kind == "f" and len(value) == len(s.pairs)
    sizes = ", ".join(f"{d}: {n}" for d, n in value.sizes.items())
    return sound, f"{value.name!r}, {value.dtype} [{sizes}] for {len(s.pairs)} items"


@check("units", "Units.REWARD", "scores would be compared and printed on the wrong scale")
def units(s: ProbedGrader) -> Outcome:
    """Scores say that they are in units of reward."""
    return s.evidence.units is Units.REWARD, str(s.evidence.units)


@check(
    "subject", "the grader's fingerprint, readout 'reward', other data for other items",
    "the record speaks of another grader, number or text than was scored",
)  # fmt: skip
def subject(s: ProbedGrader) -> Outcome:
    """Evidence says which grader scored what."""
    said, mine = s.evidence.subject, s.signal.fingerprint
    fewer = s.signal.score(s.pairs[:1]).subject.data
    wrong = [
        f"signal {said.signal!r}, fingerprint {mine!r}" if said.signal != mine else "",
        f"readout {said.readout!r}" if said.readout != "reward" else "",
        f"data {said.data!r} for two sets of items" if said.data == fewer else "",
    ]
    return not any(wrong), "; ".join(w for w in wrong if w) or f"signal {said.signal!r}"


@check("determinism", "0", "the same text gets another score on the next call")
def determinism(s: ProbedGrader) -> Outcome:
    """Two calls agree bit for bit."""
    again = s.signal.score(list(s.pairs))
    gap = largest_gap(scores_of(again, len(s.pairs)), s.together)
    same = again.value.values.tobytes() == s.evidence.value.values.tobytes()
    return same, f"{gap:.1e} between two calls"


@check("alone = together", NEARLY, "a score depends on what else is scored in the same call")
def alone_together(s: ProbedGrader) -> Outcome:
    """One by one, two by two and all at once give the same scores."""
    gap = 0.0
    for size in (1, 2):
        parts = [s.scores(s.pairs[k : k + size]) for k in range(0, len(s.pairs), size)]
        gap = max(gap, largest_gap(np.concatenate(parts), s.together))
    return s.close(gap)


@check("order", NEARLY, "scores end up with other items, or depend on their neighbours")
def order(s: ProbedGrader) -> Outcome:
    """Items in another order keep their scores."""
    n = len(s.pairs)
    gap = 0.0
    for turned in (np.arange(n)[::-1], np.roll(np.arange(n), 1)):
        gap = max(gap, largest_gap(s.scores([s.pairs[k] for k in turned]), s.together[turned]))
    return s.close(gap)


def _turns(prompt: str, response: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


_FORMS: Mapping[str, Callable[[str, str], Any]] = MappingProxyType({
    "Item": Item.of,
    "mapping": lambda p, r: {"prompt": p, "response": r},
    "mapping of messages": lambda p, r: {"messages": _turns(p, r)},
    "list of messages": _turns,
})  # fmt: skip


@check("item forms", NEARLY, "the same text gets another score, or none, in another form")
def item_forms(s: ProbedGrader) -> Outcome:
    """Every form of an item gives the score of the pair; so does an iterator of pairs."""
    gap, failed = 0.0, []
    given: dict[str, Any] = {n: [form(*p) for p in s.pairs] for n, form in _FORMS.items()}
    for name, items in {**given, "iterator": iter(s.pairs)}.items():
        try:
            found = scores_of(s.signal.score(items), len(s.pairs))
        except Exception as error:
            failed.append(f"{name}: {said(error)}")
        else:
            gap = max(gap, largest_gap(found, s.together))
    passed, measured = s.close(gap)
    return passed and not failed, "; ".join(failed) or measured


@check("text and ids", "scored, or a RewardLensError", "an unusual item ends in an unclear crash")
def text_and_ids(s: ProbedGrader) -> Outcome:
    """Rendered text and ids are scored, or refused by an error that says so."""
    rare = {"text": Item(text="\n".join(s.pairs[0])), "ids": Item(ids=(1, 2, 3))}
    found = {name: _fate(s, [item]) for name, item in rare.items()}
    sound = all(fate == "refused" or fate.startswith("scored") for fate in found.values())
    return sound, "; ".join(f"{name} {fate}" for name, fate in found.items())


def _fate(s: ProbedGrader, items: list[Any]) -> str:
    """What becomes of items that may well be refused."""
    try:
        found = s.signal.score(items)
    except RewardLensError:
        return "refused"
    except Exception as error:
        return f"raised {said(error)}"
    values = getattr(getattr(found, "value", found), "values", found)
    return f"scored {np.asarray(values).tolist()}"


@check("input kept", "nothing changed", "scoring alters the caller's own data")
def input_kept(s: ProbedGrader) -> Outcome:
    """What was handed over is as it was, after pairs and after messages."""
    changed = []
    for name, items in {"pairs": list(s.pairs), "messages": [_turns(*p) for p in s.pairs]}.items():
        before = copy.deepcopy(items)
        try:
            s.signal.score(items)
        except Exception:
            if name == "pairs":
                raise  # of messages it is the finding of another check
        if items != before:
            changed.append(name)
    return not changed, f"changed: {', '.join(changed)}" if changed else "nothing changed"


_BAD: Mapping[str, Any] = MappingProxyType({
    "a number": 42,
    "None": None,
    "a bare string": "Blue.",
    "a triple": ("Name a colour.", "Blue.", "Red."),
    "a number as response": ("Name a colour.", 7),
})  # fmt: skip


@check("bad items", "a RewardLensError each", "a mistake in the data becomes a score or a crash")
def bad_items(s: ProbedGrader) -> Outcome:
    """What is no item is refused, also among good ones."""
    fates = {name: _fate(s, [s.pairs[0], bad]) for name, bad in _BAD.items()}
    wrong = [f"{name} {fate}" for name, fate in fates.items() if fate != "refused"]
    return not wrong, "; ".join(wrong) or f"{len(_BAD)} of {len(_BAD)} refused"


@check("no items", "a RewardLensError", "an empty file passes for a finished measurement")
def no_items(s: ProbedGrader) -> Outcome:
    """An empty list is refused."""
    fate = _fate(s, [])
    return fate == "refused", fate


@check("finite", "all", "a NaN or an infinity spreads to every mean, rank and interval")
def finite(s: ProbedGrader) -> Outcome:
    """Every score is a finite number."""
    good = np.isfinite(s.together)
    first = "" if good.all() else f"; first other: item {int(np.argmin(good))}"
    return bool(good.all()), f"{int(good.sum())} of {len(good)}{first}"


@check(
    "text decides", "more than one score of all texts, and of all responses to one prompt",
    "the scores say nothing about the responses",
)  # fmt: skip
def text_decides(s: ProbedGrader) -> Outcome:
    """Scores depend on the text, and on the response where the prompt is the same."""
    if len(np.unique(s.together)) < 2:
        return False, f"scores do not depend on the text: all are {s.together[0]:.6g}"
    responses = dict.fromkeys(r for _, r in s.pairs)
    of_one = s.scores([(s.pairs[0][0], r) for r in responses])
    if len(responses) > 1 and len(np.unique(of_one)) < 2:
        return (
            False,
            f"scores do not depend on the response: all are {of_one[0]:.6g} for one prompt",
        )
    return True, (
        f"{len(np.unique(s.together))} scores of {len(s.pairs)} texts, "
        f"{len(np.unique(of_one))} of {len(responses)} responses to one prompt"
    )


@check("file", "equal, with its id", "results cannot be kept: they are lost or altered on disk")
def file(s: ProbedGrader) -> Outcome:
    """Evidence comes back from JSON lines as it was."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scores.jsonl")
        write_jsonl(path, [s.evidence])
        (back,) = read_jsonl(path)
    same = back.value.identical(s.evidence.value) and back.id == s.evidence.id
    return same, "equal" if same else f"{s.evidence.id} came back as {back.id}"


_ALL = (
    members, capabilities, fingerprint, readouts, unknown_readout, evidence, units, subject,
    determinism, alone_together, order, item_forms, text_and_ids, input_kept, bad_items, no_items,
    finite, text_decides, claims, file,
)  # fmt: skip


def check_grader(signal: Any, probes: Sequence[tuple[str, str]]) -> ConformanceReport:
    """Hold any object to the protocol; see :func:`~reward_lens.run_conformance`."""
    subject = ProbedGrader(signal, probes)
    try:
        name = f"{signal.meta.architecture} from {signal.meta.source}"
    except Exception:  # the check of its members says what is wrong
        name = type(signal).__name__
    return ConformanceReport(name, tuple(one(subject) for one in _ALL), "a grader must")
