"""What every grader offers: capabilities, facts about itself, readouts, scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from reward_lens.errors import CapabilityError, DataError

if TYPE_CHECKING:
    from reward_lens.backbone import Trunk
    from reward_lens.evidence import Evidence


class Capability(Flag):
    """What can be asked of a signal."""

    SCORES = auto()
    PREFIX_SCORES = auto()
    ACTIVATIONS = auto()
    GRADIENTS = auto()
    HVP = auto()
    LINEAR_READOUT = auto()

    def __str__(self) -> str:
        return "|".join(c.name or "" for c in type(self) if c in self) or "none"

    __repr__ = __str__


def capabilities(trunk: Trunk) -> Capability:
    """What can be asked of a classifier on a trunk, by what was verified of it."""
    caps, anatomy = Capability.SCORES, trunk.anatomy
    whole = all(getattr(e, "prefixes", False) for e in trunk.edits)
    if anatomy.causal and trunk.alone_beyond != 0 and whole:
        caps |= Capability.PREFIX_SCORES
    if anatomy.blocks:
        caps |= Capability.ACTIVATIONS | Capability.GRADIENTS | Capability.HVP
    if anatomy.head.affine:
        caps |= Capability.LINEAR_READOUT
    return caps


@dataclass(frozen=True)
class SignalMeta:
    """What is known of a signal, and what was chosen for it.

    Attributes
    ----------
    adapter : str
        A name made from the architecture; no class stands behind it.
    architecture : str
        Class of the model.
    source : str
        Path or id it was loaded from; ``"memory"`` for a model handed over.
    template : str
        ``"chat template"``, or the plain text form used because the tokenizer has none.
    bos : str
        Who supplies the first token: ``"template"``, ``"tokenizer"`` or ``"none"``.
    position : str
        Which token the head reads: ``"native"`` (as the checkpoint's own class does), ``"last"``,
        ``"first"`` or ``"mean"``.
    reads : str
        The rule behind ``"native"``.
    head, sign, eos : str, float, str
        The head convention, -1 where the checkpoint's number is a cost, and what is done at the
        end of a text.
    labels : tuple of str
        The checkpoint's names of its rows, where it gives them.
    pad_id : int or None
    max_length : int or None
        Longest item in tokens; ``max_length_source`` says what sets it.
    dtype, device, kernel : str
        Of the trunk; ``kernel`` is the attention implementation.
    n_layers, width, n_rows : int
        Blocks, width of the stream, rows of the head.
    granularity : str
        How finely the stream's decomposition verified.
    quickcheck : str
        ``"passed"`` or ``"skipped"``.
    ignored_keys : tuple of str
        Checkpoint keys known to be inert that the model did not take.
    notes : tuple of str
        Anything a reader must know before leaning on a number.
    """

    adapter: str
    architecture: str
    source: str
    template: str
    bos: str
    position: str
    pad_id: int | None
    max_length: int | None
    dtype: str
    device: str
    kernel: str
    n_layers: int
    width: int
    n_rows: int
    granularity: str
    max_length_source: str = ""
    reads: str = "rightmost_non_pad"
    head: str = "native"
    sign: float = 1.0
    eos: str = "as rendered"
    labels: tuple[str, ...] = ()
    quickcheck: str = "skipped"
    ignored_keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def updated(self, **changes: Any) -> SignalMeta:
        """The same with some facts replaced."""
        return replace(self, **changes)

    @property
    def chosen(self) -> dict[str, Any]:
        """What was chosen for this checkpoint, for the record of every measurement."""
        return {"head": self.head, "reads": self.reads, "sign": self.sign, "eos": self.eos}


class NamedReadout(Protocol):
    """The least a readout is: a named scalar."""

    @property
    def name(self) -> str:
        """E.g. ``"reward"``."""


@runtime_checkable
class RewardSignal(Protocol):
    """A grader that scores items."""

    @property
    def meta(self) -> SignalMeta:
        """What is known of the signal."""

    @property
    def caps(self) -> Capability:
        """What can be asked of it."""

    @property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, template and convention."""

    def readouts(self) -> Sequence[NamedReadout]:
        """Every named scalar of the signal."""

    def readout(self, name: str = "reward") -> NamedReadout:
        """One readout by name."""

    def score(self, items: Iterable[Any]) -> Evidence:
        """Score items."""


def checked_signal(signal: Any) -> None:
    """Refuse what is no signal, and say how to get one.

    Raises
    ------
    DataError
        Naming what was given.
    """
    if isinstance(signal, (str, PathLike)):
        path = str(signal)
        raise DataError(f"a signal is measured, not a path: pass load_signal({path!r})")
    a_class = isinstance(signal, type)
    if a_class or not (hasattr(signal, "caps") and hasattr(signal, "meta")):
        what = f"the class {signal.__name__}" if a_class else type(signal).__name__
        raise DataError(
            f"{what} is no signal: pass what load_signal(path) or wrap_hf_model(model, tokenizer) "
            f"gives"
        )


def require(signal: RewardSignal, needed: Capability, instrument: str) -> None:
    """Refuse an instrument on a signal that lacks what it needs.

    Raises
    ------
    DataError
        If it is no signal at all, but a path, say.
    CapabilityError
        Naming the capability and what has it.
    """
    checked_signal(signal)
    lacking = needed & ~signal.caps
    if lacking:
        raise CapabilityError(
            f"{instrument} needs {lacking}, which {signal.meta.architecture} does not offer (it "
            f"offers {signal.caps}). {_WHO_HAS_IT}"
        )


_WHO_HAS_IT = (
    "Classifier reward models on a causal transformer whose blocks verified have all of them; "
    "signal.meta.notes says what did not verify here."
)
