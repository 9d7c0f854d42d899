"""Every error this library raises on purpose, in one tree.

::

    RewardLensError
    ├── DataError             a row, item or pair that cannot be used (file, line and field named)
    ├── LoadError             a path or id that cannot be turned into a signal
    │   ├── DownloadRefused       files would have to be fetched and ``allow_download`` is off
    │   └── CheckpointError       keys, shapes, tokenizer or weights do not fit together
    ├── TokenizeError         an item that cannot become ids (too long, empty, no template)
    ├── ConformanceError      a loaded signal does not behave as its checkpoint does
    ├── AnatomyError          a structure or site that this model does not have
    ├── CapabilityError       an instrument asked of a signal that lacks what it needs
    ├── NumericsError         NaN, infinity, or a result too inexact to hand out
    ├── GaugeError            a comparison that the gauge or the units forbid
    └── EvidenceError         a record that is malformed or does not match its id

Each message says what is wrong, where, and what to do. Errors about arguments also derive from
``ValueError`` so that ordinary handlers catch them.
"""


class RewardLensError(Exception):
    """Base of every deliberate error of this library."""


class DataError(RewardLensError, ValueError):
    """A row, item or pair that cannot be used; names the file, line and field."""


class LoadError(RewardLensError):
    """A path or id that cannot be turned into a signal."""


class DownloadRefused(LoadError):  # noqa: N818 - a refusal, not a failure
    """Files would have to be fetched, and the caller did not allow it."""


class CheckpointError(LoadError):
    """A checkpoint whose keys, shapes, tokenizer or weights do not fit together."""


class TokenizeError(RewardLensError, ValueError):
    """An item that cannot become ids: too long, empty, or without a usable template."""


class ConformanceError(RewardLensError):
    """A loaded signal that does not behave as its checkpoint does."""


class AnatomyError(RewardLensError, ValueError):
    """A structure or site that this model does not have, or that could not be verified."""


class CapabilityError(RewardLensError, TypeError):
    """An instrument asked of a signal that lacks a capability it needs."""


class NumericsError(RewardLensError, ArithmeticError):
    """A NaN, an infinity, or a result too inexact to hand out."""


class GaugeError(RewardLensError, ValueError):
    """A comparison that the gauge or the units forbid."""


class EvidenceError(RewardLensError, ValueError):
    """A record that is malformed or does not match its id."""
