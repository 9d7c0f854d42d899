"""A trainer callback: what a reward model prefers, and from which depth on, as it is trained."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from transformers import TrainerCallback

from reward_lens.data import as_pairs
from reward_lens.errors import AnatomyError, DataError, RewardLensError
from reward_lens.evidence import Evidence, EvidenceStore
from reward_lens.instruments import lens, preference
from reward_lens.instruments.layer_lens import READINGS
from reward_lens.signals import Capability, ClassifierRM, require, wrap_hf_model
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.training.undisturbed import plain_model, undisturbed

_DEPTHS = {
    "first_depth": "median_first",
    "stable_depth": "median_stable",
    "sign_change": "share_sign_change_after_first",
}
#: What is logged, without the prefix.
VALUES = (
    "accuracy", "accuracy_low", "accuracy_high", "ties", "median_margin", "length_slope",
    "length_slope_low", "length_slope_high", *(f"{d}_{r}" for r in READINGS for d in _DEPTHS),
    "head_norm", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Probed:
    """What was measured at one step.

    Attributes
    ----------
    step : int
        Optimiser steps done.
    values : mapping of str to float
        As logged, without the prefix.
    preference, lens : Evidence
        What they were read off.
    """

    step: int
    values: Mapping[str, float]
    preference: Evidence
    lens: Evidence


class RewardProbe(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Measures a reward model on fixed pairs at each evaluation of its trainer, and logs it.

    For transformers' ``Trainer`` and what derives from it, such as TRL's ``RewardTrainer``. The
    values go through the trainer's ``log``, so that whatever it reports to sees them, and into the
    metrics that ``evaluate`` returns, so that ``metric_for_best_model`` may name one::

        probe = RewardProbe(pairs).attach(trainer)
        trainer.train()

    Logged, each with the prefix: ``accuracy`` with ``accuracy_low`` and ``accuracy_high`` (95 %,
    over lineages), ``ties``, ``median_margin`` (of its size); per reading of the lens (``frozen``,
    ``applied``) the median ``first_depth_…`` and ``stable_depth_…`` and ``sign_change_…`` (share of
    pairs); ``length_slope`` with its interval (reward per e-fold of length within a prompt);
    ``head_norm``; ``seconds``. NaN where there is no number; the evidence says why.

    Parameters
    ----------
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
        The probe set: the same all the time, and not what the model is trained on.
    every : {"evaluate"} or int
        At each evaluation, or every so many optimiser steps.
    at_start : bool
        Also before the first step, for a baseline.
    readout, truncate, batch_tokens
        As for :func:`~reward_lens.preference`.
    prefix : str
        ``eval_`` at the beginning puts the values beside those of the evaluation.
    signal_options : mapping, optional
        Of :func:`~reward_lens.wrap_hf_model`: ``template``, ``bos``, ``eos``, ``position``. Texts
        are to look as they do in training.
    store : EvidenceStore, optional
        Takes the evidence of every probe.

    Attributes
    ----------
    history : list of Probed

    Notes
    -----
    Costs four forwards per pair a probe (each side once for the scores, once for the lens), and a
    hash of all weights for the receipts. The model is left as it was found: mode of every module,
    random states, gradients, device. Only the first process of several measures.

    Raises
    ------
    DataError
        If ``every`` is neither, or a pair cannot be read.
    """

    def __init__(
        self,
        pairs: Any,
        every: str | int = "evaluate",
        *,
        at_start: bool = True,
        readout: str = "reward",
        truncate: str = "error",
        batch_tokens: int = BATCH_TOKENS,
        prefix: str = "eval_probe_",
        signal_options: Mapping[str, Any] | None = None,
        store: EvidenceStore | None = None,
    ) -> None:
        steps = isinstance(every, int) and not isinstance(every, bool) and every > 0
        if every != "evaluate" and not steps:
            raise DataError(f"every={every!r}: give 'evaluate' or a number of steps")
        self.pairs = as_pairs(pairs)
        self.every = every
        self.at_start = at_start
        self.prefix = prefix
        self.store = store
        self.history: list[Probed] = []
        self._asked: dict[str, Any] = {
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        }
        self._options = dict(signal_options or {})
        self._trainer: weakref.ref[Any] | None = None
        self._signal: ClassifierRM | None = None

    def attach(self, trainer: Any) -> Self:
        """Add the probe to a trainer, once the model is seen to be one that can be measured.

        Parameters
        ----------
        trainer : transformers.Trainer
            Not yet training: a fault shows here and not hours later.

        Raises
        ------
        AnatomyError
            If the model cannot be looked into as the trainer holds it; says why.
        CapabilityError, ConformanceError
            As :func:`~reward_lens.wrap_hf_model`.
        RewardLensError
            If the probe is attached already, or the trainer has no tokenizer.
        """
        if self._trainer is not None:
            raise RewardLensError("this probe is attached to a trainer already; make another one")
        self._trainer = weakref.ref(trainer)
        try:
            with undisturbed(trainer.model):
                self._signal = self._wrapped(trainer)
        except BaseException:
            self._trainer = None
            raise
        trainer.add_callback(self)
        return self

    def measure(self) -> Probed:
        """Measure the model as it is now, and log nothing.

        Raises
        ------
        RewardLensError
            If the probe is attached to no trainer; else as the instruments.
        """
        trainer = self._attached()
        with undisturbed(trainer.model):
            return self._measured(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Probe before the first step."""
        self._attached()
        if self.at_start:
            self._probe(state)

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: dict[str, float] | None = None,
        **given: Any,
    ) -> None:
        """Probe after an evaluation; the values join its metrics."""
        if self.every == "evaluate":
            values = self._probe(state)
            if metrics is not None:
                metrics.update(values)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Probe where steps are counted."""
        if isinstance(self.every, int) and state.global_step % self.every == 0:
            self._probe(state)

    def _attached(self) -> Any:
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None:
            raise RewardLensError(
                "RewardProbe has no trainer to log through: leave it out of callbacks=[...] and "
                "call probe.attach(trainer) once the trainer is made"
            )
        return trainer

    def _probe(self, state: Any) -> dict[str, float]:
        """Measure and log in the first process; the values, in every process."""
        trainer = self._attached()
        values = self._probe_here(trainer) if state.is_world_process_zero else {}
        return {self.prefix + k: v for k, v in _shared(values, trainer.args.device).items()}

    def _probe_here(self, trainer: Any) -> Mapping[str, float]:
        with undisturbed(trainer.model):
            last = self.history[-1] if self.history else None
            found = self._measured(trainer, last)
            if found is not last:
                self.history.append(found)
                if self.store is not None:
                    self.store.append_all([found.preference, found.lens])
                # In evaluation mode: TRL's trainer would add, and then forget, what it collected
                # for its next training entry.
                trainer.log({self.prefix + k: v for k, v in found.values.items()})
        return found.values

    def _measured(self, trainer: Any, last: Probed | None = None) -> Probed:
        """Run the instruments; ``last`` again if nothing changed since, as with several sets."""
        began = time.perf_counter()
        step = int(trainer.state.global_step)
        # A new view, so that weights written to behind torch's back are hashed anew.
        signal = self._current(trainer).with_meta(source=f"training, step {step}")
        if (
            last is not None
            and last.step == step
            and last.preference.subject.signal == signal.fingerprint
        ):
            return last
        preferred = preference(signal, self.pairs, **self._asked)
        depths = lens(signal, self.pairs, **self._asked)
        direction = signal.readout(self._asked["readout"]).direction
        values = {
            **_of_preference(preferred),
            **_of_lens(depths),
            "head_norm": float(direction.double().norm()),
            "seconds": time.perf_counter() - began,
        }
        return Probed(step, values, preferred, depths)

    def _current(self, trainer: Any) -> ClassifierRM:
        """The signal; found anew if the trainer has since exchanged, moved or rebuilt the model."""
        model = plain_model(trainer.model)
        if self._signal is None or not _still_of(self._signal, model):
            self._signal = self._wrapped(trainer)
        return self._signal

    def _wrapped(self, trainer: Any) -> ClassifierRM:
        tokenizer = getattr(trainer, "processing_class", None)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor holds one
        if tokenizer is None:
            raise RewardLensError(
                "the trainer has no tokenizer to read the pairs with: give it processing_class="
            )
        signal = wrap_hf_model(plain_model(trainer.model), tokenizer, **self._options)
        require(signal, Capability.ACTIVATIONS, "RewardProbe")
        return signal


def _still_of(signal: ClassifierRM, model: Any) -> bool:
    """Whether what was found out about the model holds for this one."""
    if signal.trunk.model is not model:
        return False
    if next(model.parameters()).device != signal.trunk.device:
        return False
    try:
        signal.trunk.refuse_rebuilt()
    except AnatomyError:
        return False
    return True


def _shared(values: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """The first process's values, in every process: each looks for its best checkpoint itself."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return dict(values)
    found = torch.tensor([values.get(k, 0.0) for k in VALUES], dtype=torch.float64, device=device)
    distributed.broadcast(found, src=0)
    return dict(values) or dict(zip(VALUES, found.tolist(), strict=True))


def _of_preference(found: Evidence) -> dict[str, float]:
    accuracy, slope = found.interval("accuracy"), found.interval("length.slope")
    margins = found.value.sel(side="margin").values
    return {
        "accuracy": accuracy.estimate,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "ties": float((margins == 0).sum()),
        "median_margin": float(np.median(np.abs(margins))),
        "length_slope": slope.estimate,
        "length_slope_low": slope.low,
        "length_slope_high": slope.high,
    }


def _of_lens(found: Evidence) -> dict[str, float]:
    table = found.tables["crystallization"].set_index("reading")
    return {
        f"{name}_{reading}": float(table[column].to_dict()[reading])
        for reading in READINGS
        for name, column in _DEPTHS.items()
    }
