"""What is measured has to be a signal; whatever else is given, the error says how to get one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from families import PAIRS

import reward_lens as rl
from reward_lens import instruments
from reward_lens.comparing import compare_models
from reward_lens.errors import DataError

#: Every public function that takes a signal first.
TAKES = {
    name: getattr(rl, name)
    for name in rl.__all__
    if inspect.isfunction(getattr(rl, name))
    and next(iter(inspect.signature(getattr(rl, name)).parameters), "") == "signal"
}


def test_every_instrument_is_among_them():
    measured = {n for n in TAKES if hasattr(instruments, n)}
    assert {"preference", "lens", "attribution", "patch_grid", "bias_battery", "best_of_n",
            "fit_concept", "token_map", "calibrate", "audit"} <= measured | set(TAKES)  # fmt: skip
    assert len(TAKES) >= 19


def _call(name, given):
    more = ["reward"] if name == "objective_geometry" else []
    known = inspect.signature(TAKES[name]).parameters
    needed = [
        p for p in known.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    return TAKES[name](given, *[PAIRS for _ in needed[1:]], *more[: max(0, len(needed) - 2)])


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("given", ["some/path", Path("some/path")])
def test_a_path_is_refused_with_the_call_that_loads_it(name, given):
    with pytest.raises(DataError, match=r"not a path: pass load_signal\('some/path'\)"):
        _call(name, given)


@pytest.mark.parametrize("name", [n for n in TAKES if n != "run_conformance"])
def test_anything_else_is_named(name):
    with pytest.raises(DataError, match="^object is no signal: pass what load_signal"):
        _call(name, object())


def test_a_class_is_no_signal():
    with pytest.raises(DataError, match="^the class ClassifierRM is no signal"):
        rl.lens(type(rl.from_tiny()), PAIRS)


@pytest.mark.parametrize(
    ("model", "said"),
    [("some/path", r"not a path: load_signal\('some/path'\)"), (object(), "no transformers model")],
)
def test_what_is_no_model_is_not_wrapped(model, said):
    with pytest.raises(DataError, match=said):
        rl.wrap_hf_model(model, None)


@pytest.mark.parametrize("tokenizer", [None, "some/path"])
def test_a_model_is_wrapped_with_its_tokenizer(tokenizer):
    with pytest.raises(DataError, match="give the tokenizer itself"):
        rl.wrap_hf_model(rl.from_tiny().trunk.model, tokenizer)


@pytest.mark.parametrize("names", ["ab", ("x",), (None, None), ("", ""), ("same", "same")])
def test_names_tell_two_models_apart(names):
    signal = rl.from_tiny()
    with pytest.raises(DataError, match="give two different names"):
        compare_models(signal, signal, PAIRS, names=names)


@pytest.mark.parametrize("call", [rl.compare, compare_models])
def test_either_of_two_models_is_looked_at(call):
    signal = rl.from_tiny()
    for both in (("some/path", signal), (signal, "some/path")):
        with pytest.raises(DataError, match="not a path"):
            call(*both, PAIRS)
