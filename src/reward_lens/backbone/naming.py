"""Names for what the structure does not settle: a small table, and a user's own answer.

The anatomy is searched by numbers alone. Where that finds nothing, the outputs of modules with
these usual names are tried; a user who knows better gives :class:`AnatomyNames`, as an argument or
as an entry point of the group ``reward_lens.anatomy`` named after the model type. Whatever is named
is verified numerically like everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points

from reward_lens.errors import AnatomyError

#: Names of the modules, inside a block, that write to the stream: attention, then MLP.
USUAL_WRITES: tuple[tuple[str, str], ...] = (
    ("self_attn", "mlp"),
    ("attn", "mlp"),
    ("attention", "mlp"),
    ("attention", "feed_forward"),
    ("post_attention_layernorm", "post_feedforward_layernorm"),
    ("attention.output.dense", "output.dense"),
    ("mixer", "mlp"),
)
ENTRY_POINTS = "reward_lens.anatomy"


@dataclass(frozen=True)
class AnatomyNames:
    """Where the parts of a trunk are, said by somebody who knows.

    Every name left out is searched for. A named part that does not verify is an error or a missing
    granularity, as if it had been found.

    Parameters
    ----------
    blocks : str, optional
        Dotted name, in the model, of the module list that holds the residual blocks.
    final_norm : str, optional
        Dotted name, in the model, of the norm after the blocks.
    writes : tuple of str, optional
        Names, inside a block, of the modules whose outputs are added to the stream.
    """

    blocks: str | None = None
    final_norm: str | None = None
    writes: tuple[str, ...] | None = None


def registered_names(model_type: str) -> AnatomyNames | None:
    """What an installed package says about a model type; ``None`` if none does.

    Raises
    ------
    AnatomyError
        If an entry point gives something else than :class:`AnatomyNames`.
    """
    for entry in entry_points(group=ENTRY_POINTS, name=model_type):
        names = entry.load()
        if not isinstance(names, AnatomyNames):
            raise AnatomyError(
                f"entry point {entry.value!r} of {ENTRY_POINTS} gives {type(names).__name__}; it "
                f"must name an AnatomyNames"
            )
        return names
    return None
