"""What a patch grid is made of: the targets of each granularity, restricted by layer or name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reward_lens.backbone import Anatomy, Site, Target, write_sites
from reward_lens.errors import AnatomyError, CapabilityError
from reward_lens.evidence import Evidence
from reward_lens.evidence.arguments import checked_count

BY = ("component", "head", "layer_position")
#: The sites that can be patched layer by layer and token by token.
LAYER_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


def grid_targets(
    anatomy: Anatomy,
    by: str,
    *,
    site: str = "resid_pre",
    layers: Sequence[int] | int | None = None,
    components: Sequence[str] | None = None,
) -> list[Target]:
    """The targets of a grid, in the order of the forward.

    Parameters
    ----------
    by : {"component", "head", "layer_position"}
        The embedding and every sublayer's write; every attention head; one site of every layer.
    site : str
        The site of ``layer_position``; one of :data:`LAYER_SITES`.
    layers : sequence of int, or int, optional
        Only these; the embedding belongs to none.
    components : sequence of str, optional
        Only these, by name.

    Raises
    ------
    CapabilityError
        If ``by`` or ``site`` is unknown, or nothing is left.
    DataError
        If a layer is no whole number from 0 on.
    AnatomyError
        If a layer or name does not exist, or the writes or heads did not verify; says what there
        is, or why.
    """
    if by not in BY:
        raise CapabilityError(f"by={by!r}: choose one of {', '.join(BY)}")
    if by != "layer_position" and site != "resid_pre":
        raise CapabilityError(f"site={site!r} is of by='layer_position', and this is by={by!r}")
    if site not in LAYER_SITES:
        raise CapabilityError(f"site={site!r}: choose one of {', '.join(LAYER_SITES)}")
    wanted = _layers(anatomy, listed_layers(layers))
    if by == "layer_position":
        found = [Target(Site(site, layer)) for layer in wanted]
    elif by == "head":
        found = [Target(Site("head_in", layer), head)
                 for layer in wanted for head in range(_n_heads(anatomy, layer))]  # fmt: skip
    else:
        outer = [Site("embed")] if layers is None else []
        found = [Target(s) for s in (*outer, *write_sites(anatomy))
                 if s.layer is None or s.layer in wanted]  # fmt: skip
    return _named(found, components, by)


def largest_effects(grid: Evidence, count: int) -> list[str]:
    """The components with the largest mean |effect| over both directions, as the forward has them.

    Parameters
    ----------
    grid : Evidence
        Of :func:`~reward_lens.patch_grid`, by component.
    """
    table = grid.tables["components"]
    # Where no pair has the tokens that are patched, there is no effect.
    sizes = table.groupby("component", sort=False)["mean_size"].mean().fillna(0.0)
    return sizes[sizes.rank(method="first", ascending=False) <= count].index.tolist()


def listed_layers(layers: Sequence[int] | int | None) -> list[int] | None:
    """Layers as a list, one of them too; None for all.

    Raises
    ------
    DataError
        If one is no whole number from 0 on.
    """
    if layers is None:
        return None
    given = list(layers) if isinstance(layers, Iterable) else [layers]
    return [checked_count("layers", layer, 0) for layer in given]


def _layers(anatomy: Anatomy, layers: list[int] | None) -> list[int]:
    count = len(anatomy.blocks)
    if layers is None:
        return list(range(count))
    wrong = [layer for layer in layers if layer >= count]
    if wrong:
        raise AnatomyError(
            f"layer {wrong[0]} does not exist: this model has layers 0 to {count - 1}"
        )
    return sorted(set(layers))


def _n_heads(anatomy: Anatomy, layer: int) -> int:
    if anatomy.blocks[layer].attn is None and anatomy.adds_up:
        return 0  # a block without attention
    heads = anatomy.write(Site("head_in", layer)).heads
    assert heads is not None  # else the line above raised
    return heads.n


def _named(found: list[Target], components: Sequence[str] | None, by: str) -> list[Target]:
    if components is not None:
        names = [components] if isinstance(components, str) else list(components)
        known = {str(t) for t in found}
        wrong = [name for name in names if name not in known]
        if wrong:
            raise AnatomyError(
                f"{wrong[0]!r} is no part of a grid by={by!r}; it has "
                f"{_listed([str(t) for t in found])}"
            )
        found = [t for t in found if str(t) in names]
    if not found:
        raise CapabilityError("nothing is left to patch: no layer, or no component, was asked for")
    return found


def _listed(names: list[str]) -> str:
    """All names, or, of many, where they begin and end."""
    if len(names) <= 24:
        return ", ".join(names)
    return f"{', '.join(names[:12])}, … {', '.join(names[-4:])} ({len(names)} in all)"
