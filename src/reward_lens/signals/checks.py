"""The conformance checks: each measures one thing and says what a failure means."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import MEAN, Encoded, Site, masked_mean, read_rows, write_sites
from reward_lens.data import Item
from reward_lens.errors import ConformanceError, RewardLensError
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.decomposition import CLOSURE, COMPLETENESS_FP32, decompose
from reward_lens.signals.protocol import Capability
from reward_lens.signals.readouts import Readout
from reward_lens.signals.scoring import scores_at

EXACT = 1e-5  # of the scores' spread; what reordered float32 sums differ by
COARSE = 0.5  # in half precision only gross faults are judged; the gap itself is printed
_WHOLE = 10**9  # batch tokens: everything in one batch
_COPY_LIMIT = 2 * 10**9  # bytes of weights up to which other dtypes are tried in a copy

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One check's outcome.

    Attributes
    ----------
    name : str
    passed : bool
    measured, allowed : str
        As printed.
    meaning : str
        What a failure means for the user of the scores.
    """

    name: str
    passed: bool
    measured: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one signal, and what it was judged by."""

    signal: str
    checks: tuple[Check, ...]
    judge: str = "its checkpoint does"

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(c.passed for c in self.checks)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [c.name for c in self.checks if not c.passed]

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def __str__(self) -> str:
        width = max(len(c.name) for c in self.checks)
        lines = [f"conformance of {self.signal}"]
        for c in self.checks:
            mark = "ok    " if c.passed else "FAILED"
            lines.append(f"  {mark} {c.name:<{width}}  {c.measured} (allowed: {c.allowed})")
            if not c.passed:
                lines.append(f"         {c.meaning}")
        return "\n".join(lines)

    def raise_if_failed(self) -> None:
        """Raise unless every check passed.

        Raises
        ------
        ConformanceError
            With the table.
        """
        if not self.passed:
            raise ConformanceError(
                f"the signal does not behave as {self.judge}: {', '.join(self.failed)}\n{self}"
            )


class Probed:
    """A signal with encoded probes and what several checks share."""

    def __init__(self, signal: ClassifierRM, probes: Sequence[tuple[str, str]]) -> None:
        self.signal = signal
        self.items = [Item.of(p, r) for p, r in probes]
        self.encoded = signal.encoder.encode(self.items, truncate="right")
        self.read = signal.read_index(self.encoded)
        self.readout = signal.readout()
        self.half = signal.meta.dtype != "float32"

    @cached_property
    def alone(self) -> Floats:
        """Every probe's score, each alone."""
        return np.array([self.scores([k], "right")[0] for k in range(len(self.encoded))])

    @cached_property
    def natively_read(self) -> Floats:
        """Every probe's score, each alone, read where the model's own class reads."""
        if [e.native for e in self.encoded] == self.read:
            return self.alone
        return np.array([self.curve(k)[e.native] for k, e in enumerate(self.encoded)])

    @cached_property
    def by_ids(self) -> Floats:
        """Every probe's score, its ids given as ids (without token types)."""
        items = [Item(ids=tuple(e.ids.tolist())) for e in self.encoded]
        return self.signal.score(items, truncate="right").value.values.astype(float)

    @cached_property
    def spread(self) -> float:
        """Range of the scores: the scale on which gaps are judged.

        Of a head of several rows the widest row's: their mean can cancel to almost nothing.
        """
        spread = np.ptp(self.alone)
        if len(self.readout.rows) > 1:
            rows = [r for r in self.signal.readouts() if len(r.rows) == 1]
            spread = max(np.ptp([self._read(k, r) for k in self._all]) for r in rows)
        return float(max(spread, 1e-6 * np.abs(self.alone).max(), 1e-12))

    @property
    def _all(self) -> range:
        return range(len(self.encoded))

    def _read(self, k: int, readout: Readout) -> float:
        return float(
            scores_at(self.signal, [self.encoded[k]], readout, [[self.read[k]]], _WHOLE)[0, 0]
        )

    def scores(self, index: Sequence[int], side: str) -> Floats:
        """Scores of some probes in one batch, padded on ``side``."""
        part = [self.encoded[i] for i in index]
        read = [self.read[i] for i in index]
        out = np.empty(len(part))
        for batch in self.signal.trunk.batches(part, _WHOLE, side):
            normed = self.signal.trunk.final_states(batch)
            where = np.asarray(index)[batch.index]
            if self.readout.head.pool == "late":
                values = masked_mean(batch, self.readout.read(normed, where))
            else:
                values = self.readout.read(read_rows(read)(batch, normed), where)
            out[batch.index] = values.double().cpu().numpy()
        return out

    def curve(self, k: int, encoded: Encoded | None = None) -> Floats:
        """Our score read at every token of probe ``k`` (or of other ids of its item)."""
        states = self._states(self.encoded[k] if encoded is None else encoded)
        return self.readout.read(states, np.array([k]))[0].double().cpu().numpy()

    @torch.no_grad()
    def native_curve(self, k: int) -> Floats:
        """The model's own head, in its own dtype, at every token of one probe."""
        states = self._states(self.encoded[k])
        logits = self.signal.trunk.anatomy.head.native(states[0])
        curve: Floats = self._of_rows(logits.double(), k).cpu().numpy()
        return curve

    def _states(self, encoded: Encoded) -> Tensor:
        (batch,) = self.signal.trunk.batches([encoded], _WHOLE)
        return self.signal.trunk.final_states(batch)

    def _of_rows(self, logits: Tensor, k: int) -> Tensor:
        """The readout of probe ``k`` from the model's own logits ``[..., rows]``."""
        sign = self.signal.meta.sign
        return sign * logits[..., list(self.readout.rows)].mean(-1)

    @torch.no_grad()
    def native(self, k: int) -> float:
        """The readout from the model's own logits, on the item alone and unpadded."""
        encoded = self.encoded[k]
        self.signal.trunk.forget()
        ids = torch.from_numpy(encoded.ids)[None].to(self.signal.trunk.device)
        model: Any = self.signal.trunk.model
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if encoded.types is not None:
            given["token_type_ids"] = torch.from_numpy(encoded.types)[None].to(ids.device)
        return float(self._of_rows(model(**given).logits[0].double(), k))

    def gap(self, name: str, gap: float, meaning: str, spread: float | None = None) -> Check:
        """A check of a difference of scores against their spread."""
        allowed = COARSE if self.half else EXACT
        share = gap / (self.spread if spread is None else spread)
        why = " (half precision: gross faults only)" if self.half else ""
        return Check(
            name,
            bool(share <= allowed),
            f"{share:.1e} of the scores' spread",
            f"{allowed:.0e}{why}",
            meaning,
        )


def determinism(s: Probed) -> Check:
    """Two runs of the same text agree bit for bit."""
    again = np.array([s.scores([k], "right")[0] for k in range(len(s.encoded))])
    gap = float(np.abs(again - s.alone).max())
    return Check(
        "determinism", gap == 0, f"{gap:.1e} between two runs", "0",
        "the same text gets another score on the next call: dropout, or a random layer, is on",
    )  # fmt: skip


def batch_alone(s: Probed) -> Check:
    """A score is the same alone and in a batch."""
    gap = np.abs(s.scores(range(len(s.encoded)), "right") - s.alone)
    return s.gap(
        "batch = alone", float(gap.max()),
        "a score depends on what else is in the batch: padding reaches the read token",
    )  # fmt: skip


def padding_side(s: Probed) -> Check:
    """Ids that come padded on either side give the scores of the ids alone."""
    pad, gap, tokenizer = s.signal.encoder.pad_id, 0.0, s.signal.encoder.tokenizer
    meant = pad in (None, tokenizer.eos_token_id, tokenizer.bos_token_id)  # then it may be text
    if not meant and all(pad not in e.ids for e in s.encoded):
        rows = [e.ids.tolist() for e in s.encoded]
        for padded in ([[*r, pad, pad] for r in rows], [[pad, pad, pad, *r] for r in rows]):
            again = s.signal.score([Item(ids=tuple(r)) for r in padded], truncate="right")
            gap = max(gap, float(np.abs(again.value.values - s.by_ids).max()))
    if s.signal.trunk.inputs.positions:  # where positions are ours, the layout must not matter
        left = s.scores(range(len(s.encoded)), "left")
        gap = max(gap, float(np.abs(left - s.scores(range(len(s.encoded)), "right")).max()))
    return s.gap(
        "padding side", gap,
        "padding on the left moves scores: positions or the read token do not follow the mask",
    )  # fmt: skip


def head_native(s: Probed) -> Check:
    """Our score is the model's own logit."""
    native = np.array([s.native(k) for k in range(len(s.encoded))])
    gap = float(np.abs(s.natively_read - native).max())
    if not s.half:
        return s.gap("head = native", gap, _HEAD_MEANS)
    allowed = _native_rounding(s)
    return Check(
        "head = native", bool(gap <= allowed), f"{gap:.1e}",
        f"{allowed:.1e}, what {s.signal.meta.dtype} loses in the model's own head", _HEAD_MEANS,
    )  # fmt: skip


_HEAD_MEANS = "our score is not the model's own: head, norm or read position were taken wrongly"


def _native_rounding(s: Probed) -> float:
    """Bound on what the model's own half-precision head loses: its epsilon times Σ|w·h|."""
    rows, biases = (t[list(s.readout.rows)].abs() for t in s.readout.head.rows())
    weight, bias, sizes = rows.mean(0), biases.mean(), []
    for batch in s.signal.trunk.batches(s.encoded, _WHOLE):
        h = s.signal.trunk.final_states(batch).float()
        sizes.append((s.readout.head.features(h).abs() @ weight + bias).max())
    steps = len(s.readout.head.steps)  # every module of the head rounds once more
    return 2 * steps * torch.finfo(s.signal.trunk.dtype).eps * float(max(sizes))


@torch.no_grad()
def composite_native(s: Probed) -> Check:
    """The gated score, read by a direction per item, is the one of the checkpoint's formula."""
    means = "the gate is read at another token, or its weights are put on other rows"
    model: Any = s.signal.trunk.model
    if s.signal.gate is None:
        return Check("composite = native", True, "the head has no gate", "-", means)
    try:
        ours = s.signal.score(s.items, readout="composite", truncate="right").value.values
    except RewardLensError as error:
        return Check("composite = native", False, str(error), "-", means)
    native = [float(model.composite(torch.from_numpy(e.ids)[None].to(s.signal.trunk.device)))
              for e in s.encoded]  # fmt: skip
    gap = np.abs(ours - s.signal.meta.sign * np.array(native)).max()
    return s.gap("composite = native", float(gap), means, spread=max(np.ptp(native), 1e-12))


def read_position(s: Probed) -> Check:
    """Of all tokens, the one we read is where the model's own head gives the model's own score."""
    if s.readout.head.pool in ("mean", "late"):
        return Check("read position", True, "the head reads the mean over all tokens", "-", "")
    wrong, away = 0, 0
    for k, (encoded, read) in enumerate(zip(s.encoded, s.read, strict=True)):
        places = {"native": encoded.native, "last": len(encoded.ids) - 1, "first": 0, "mean": MEAN}
        expected = places[s.signal.meta.position]
        gap = np.abs(s.native_curve(k) - s.native(k))
        wrong += read != expected or bool(gap[encoded.native] > gap.min())
        away += encoded.native != encoded.last
    return Check(
        "read position", wrong == 0,
        f"{wrong} of {len(s.encoded)} items read elsewhere; native differs from the last token "
        f"on {away}", "0 elsewhere",
        "the head is read at another token than the model's own forward reads",
    )  # fmt: skip


def prefix_curve(s: Probed) -> Check:
    """The curve of prefix scores is the scores of the cut ids."""
    if Capability.PREFIX_SCORES not in s.signal.caps:
        return Check("prefix curve", True, "not causal: no prefix scores are offered", "-", "")
    limit = s.signal.trunk.alone_beyond
    gap, low, high = 0.0, np.inf, -np.inf
    for k, encoded in enumerate(s.encoded):
        if limit is not None and encoded.last >= limit:
            continue
        curve = s.curve(k)
        low, high = min(low, float(curve.min())), max(high, float(curve.max()))
        for cut in {len(encoded.ids) // 3, len(encoded.ids) // 2, len(encoded.ids) - 2} - {0}:
            alone = s.curve(k, Encoded(encoded.ids[:cut], cut - 1))[-1]
            gap = max(gap, abs(float(alone - curve[cut - 1])))
    means = "the curve of prefix scores is not the scores of the cut texts"
    # Prefix scores range wider than the scores of whole texts; rounding follows what is compared.
    return s.gap("prefix curve", gap, means, spread=max(high - low, s.spread))


def completeness(s: Probed) -> Check:
    """The writes found add up to the score."""
    means = "attribution would leave something out: a write, a norm or a scale was not found"
    if not s.signal.trunk.anatomy.adds_up:
        why = "no writes verified here, so none are offered"
        return Check("completeness", True, why, "-", means)
    try:
        found = decompose(s.signal, s.encoded, s.read, s.readout)
    except RewardLensError as error:
        return Check("completeness", False, str(error), "-", means)
    if s.half:
        ok, value = found.closure <= CLOSURE, found.closure
        allowed = f"{CLOSURE:.0e} with rounding"
    else:
        ok, value = found.completeness <= COMPLETENESS_FP32, found.completeness
        allowed = f"{COMPLETENESS_FP32:.0e}"
    return Check(
        "completeness", bool(ok), f"writes miss the score by {value:.1e} of their size", allowed,
        means,
    )  # fmt: skip


@torch.no_grad()
def hooked_plain(s: Probed) -> Check:
    """A forward that is looked at is bit-equal to one that is not."""
    trunk = s.signal.trunk
    anatomy = trunk.anatomy
    sites = [Site("resid_post", i) for i in range(trunk.n_layers)]
    sites += write_sites(anatomy) if anatomy.adds_up else []
    different = 0
    for encoded in s.encoded:
        (batch,) = trunk.batches([encoded], _WHOLE)
        different += not torch.equal(trunk.forward(batch, {})[0], trunk.looked_at(batch, sites))
    return Check(
        "hooked = plain", different == 0, f"{different} of {len(s.encoded)} forwards differ", "0",
        "looking changes what is looked at: activations are not those of the scored forward",
    )  # fmt: skip


def tokenizer_fits(s: Probed) -> Check:
    """Every id of the tokenizer has an embedding."""
    rows = int(s.signal.trunk.model.get_input_embeddings().weight.shape[0])
    top = max(s.signal.encoder.tokenizer.get_vocab().values())
    return Check(
        "tokenizer fits", top < rows, f"ids up to {top}, {rows} embeddings", "every id embedded",
        "texts with the ids beyond would crash, or the tokenizer is another model's",
    )  # fmt: skip


def checkpoint_keys(s: Probed) -> Check:
    """Every weight equals the one in the checkpoint's files, where they are in a local folder."""
    means = "the model that is scored is not the checkpoint: weights were lost, or changed later"
    folder = Path(s.signal.meta.source).expanduser()
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    inert = len(s.signal.meta.ignored_keys)
    if not files:
        return Check("checkpoint keys", True, "not loaded from a folder: nothing to compare", "-",
                     means)  # fmt: skip
    from safetensors import safe_open

    held = s.signal.trunk.model.state_dict()
    differ, same, other = [], 0, 0
    for file in files:
        with safe_open(str(file), framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - the handle is no mapping
                if key not in held or tuple(tensors.get_slice(key).get_shape()) != held[key].shape:
                    other += 1  # inert, or renamed on loading; missing keys are refused there
                elif torch.equal(tensors.get_tensor(key).to(held[key].dtype), held[key].cpu()):
                    same += 1
                else:
                    differ.append(key)
    named = f", first {differ[0]}" if differ else ""
    return Check(
        "checkpoint keys", not differ,
        f"{same} equal, {len(differ)} differ{named}, {other} stored in another form "
        f"({inert} of them inert)", "0 differ", means,
    )  # fmt: skip


def template_round_trip(s: Probed) -> Check:
    """One BOS where there is one at all, and tokens that decode to the text they stand for."""
    encoder, wrong = s.signal.encoder, []
    bos, convention = encoder.frame.opening, s.signal.meta.bos
    for item, encoded in zip(s.items, s.encoded, strict=True):
        ids = encoded.ids.tolist()
        starts = next((k for k, i in enumerate(ids) if i != bos), len(ids))
        if bos is not None and convention in ("template", "tokenizer") and starts != 1:
            wrong.append(f"{starts} BOS at the start")
        if not encoded.cut and encoder.align(item).verified is None:
            wrong.append("tokens could not be placed in the text they stand for")
    return Check(
        "template round trip", not wrong,
        f"{len(wrong)} faults" + (f": {wrong[0]}" if wrong else f"; BOS by {convention}"), "0",
        "the model is given another text than the one shown, or begins with a doubled BOS",
    )  # fmt: skip


@torch.no_grad()
def finite(s: Probed) -> Check:
    """States are finite in the dtype in use; other dtypes are tried in a copy where it is small."""
    trunk = s.signal.trunk
    said = []
    size = sum(p.numel() * 4 for p in trunk.model.parameters())
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if dtype == trunk.dtype:
            said.append(f"{name} {'finite' if bool(np.isfinite(s.alone).all()) else 'NOT FINITE'}")
            continue
        if size > _COPY_LIMIT:
            said.append(f"{name} not tried (a copy would be large)")
            continue
        model: Any = copy.deepcopy(trunk.model).to(dtype)
        logits = [
            model(input_ids=torch.from_numpy(e.ids)[None].to(trunk.device)).logits
            for e in s.encoded
        ]
        ok = all(bool(torch.isfinite(x).all()) for x in logits)
        said.append(f"{name} {'finite' if ok else 'NOT FINITE: do not load it so'}")
    return Check(
        "finite", bool(np.isfinite(s.alone).all()), "; ".join(said), "finite in the dtype in use",
        "scores are NaN or infinite: load the model in another dtype",
    )  # fmt: skip


def four_threads(s: Probed) -> Check:
    """Capture from four threads at once gives the serial results."""
    site = [Site("resid_post", k) for k in range(s.signal.meta.n_layers)]

    def capture(k: int) -> list[torch.Tensor]:
        (batch,) = s.signal.trunk.batches([s.encoded[k]], _WHOLE)
        return list(s.signal.trunk.capture(batch, site).values())

    jobs = list(range(len(s.encoded))) * 2
    serial = [capture(k) for k in jobs]
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(capture, jobs))
    pairs = zip(serial, threaded, strict=True)
    wrong = sum(not all(map(torch.equal, a, b)) for a, b in pairs)
    return Check(
        "four threads", wrong == 0, f"{wrong} of {len(jobs)} captures differ", "0",
        "activations of one text end up in another's when threads share the signal",
    )  # fmt: skip
