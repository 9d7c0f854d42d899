#!/usr/bin/env python3
"""Check the GPT-2 merges and put them where the package ships them.

``build_gpt2_vocabulary.py MERGES OUT``: MERGES is the gzipped list, OUT the folder. The vocabulary
follows from the merges, so they are all that is shipped: a third of the size of a ready-made
tokenizer file, and no slower to load. Nothing is written unless the vocabulary comes out whole.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from reward_lens.backbone.gpt2_vocabulary import END_OF_TEXT, byte_symbols, read_merges, vocabulary

N_MERGES = 50_000


def faults(merges: list[tuple[str, str]]) -> list[str]:
    """What keeps these merges from giving the GPT-2 vocabulary; empty if nothing does."""
    found = []
    if len(merges) != N_MERGES:
        found.append(f"{len(merges)} merges; GPT-2 has {N_MERGES}")
    known = set(byte_symbols())
    for number, (left, right) in enumerate(merges, start=1):
        if left not in known or right not in known:
            found.append(f"merge {number} joins {left!r} and {right!r}, which do not exist yet")
        if left + right in known:
            found.append(f"merge {number} makes {left + right!r} again")
        known.add(left + right)
    ids = vocabulary(merges)
    if ids[END_OF_TEXT] != len(ids) - 1:
        found.append(f"{END_OF_TEXT} has id {ids[END_OF_TEXT]} of {len(ids)}; it must be the last")
    return found


def main() -> None:
    """Check the merges, then copy them."""
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    merges = read_merges(source)
    found = faults(merges)
    if found:
        more = f"\n... and {len(found) - 10} more" if len(found) > 10 else ""
        raise SystemExit(
            f"{source} does not hold the GPT-2 merges:\n" + "\n".join(found[:10]) + more
        )
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, out / "merges.txt.gz")
    sys.stdout.write(f"{len(vocabulary(merges))} tokens from {len(merges)} merges\n")


if __name__ == "__main__":
    main()
