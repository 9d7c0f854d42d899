"""Files the package ships: the GPT-2 merges and, for the demo, a model and its pairs.

Sources and licences lie beside the files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from reward_lens.errors import LoadError


def asset(name: str) -> Path:
    """Path of a shipped file or folder.

    Parameters
    ----------
    name : str
        Relative to this folder, with forward slashes, e.g. ``"gpt2/merges.txt.gz"``.

    Returns
    -------
    pathlib.Path
        An existing file or folder.

    Raises
    ------
    LoadError
        If there is no such file, or the package is not unpacked on disk (a zipped import).
    """
    path = Path(str(files(__name__).joinpath(name)))
    if not path.exists():
        raise LoadError(
            f"reward-lens ships no {name!r} (looked in {path.parent}). Check the name; if it is "
            "right, the installation is incomplete: install the package again, unpacked on disk."
        )
    return path


__all__ = ["asset"]
