"""From a path or a hub id to a folder on this machine, with a gate before any download."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward_lens.errors import DownloadRefused, LoadError
from reward_lens.signals.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    WEIGHTS,
    has_weights,
    read_json,
    weight_files,
)

#: What of a hub repository is fetched: weights as safetensors, configuration, tokenizer.
_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
_TIMEOUT = 3.0


@dataclass(frozen=True)
class Hub:
    """How hub ids are resolved.

    Attributes
    ----------
    revision : str, optional
        Branch, tag or commit.
    token : str or bool, optional
        As huggingface_hub takes it.
    allow_download : bool
    trust_remote_code : bool
        Then the checkpoint's code is fetched as well.
    """

    revision: str | None = None
    token: Any = None
    allow_download: bool = False
    trust_remote_code: bool = False

    def folder(self, name: str) -> Path:
        """Return the folder of a path or id.

        Raises
        ------
        LoadError
            If it is neither a folder nor the form of an id, the folder cannot be read, or the hub
            has no such model.
        DownloadRefused
            If files would have to be fetched and that was not allowed.
        """
        folder = Path(name).expanduser()
        try:
            if folder.exists():
                (folder / "config.json").exists()  # fails where the folder may not be entered
                return folder
        except OSError as error:
            raise LoadError(
                f"{name} cannot be read ({error.strerror or error}); see to its permissions"
            ) from error
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
            raise LoadError(f"{name}: there is no such folder")
        cached = self._snapshot(name, local=True)
        if cached is not None and _complete(cached):
            return cached
        size = self._size(name)
        if not self.allow_download:
            here = "only in part in the local cache" if cached is not None else (
                "neither a folder here nor in the local cache"
            )  # fmt: skip
            raise DownloadRefused(
                f"{name} is {here}, and would have to be downloaded ({size}). Either pass "
                f"allow_download=True, or download it beforehand (hf download {name}) and pass "
                f"the folder."
            )
        sys.stderr.write(f"downloading {name} ({size})\n")
        fetched = self._snapshot(name, local=False)
        assert fetched is not None
        return fetched

    def _snapshot(self, name: str, *, local: bool) -> Path | None:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )

        patterns = [*_PATTERNS, "*.py"] if self.trust_remote_code else list(_PATTERNS)
        try:
            return Path(
                snapshot_download(
                    name,
                    revision=self.revision,
                    token=self.token,
                    allow_patterns=patterns,
                    local_files_only=local,
                )
            )
        except LocalEntryNotFoundError as error:
            if local:
                return None
            raise LoadError(f"{name} could not be downloaded: the hub cannot be reached") from error
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            if local and not isinstance(error, HFValidationError):
                return None
            raise LoadError(f"{name} could not be downloaded: {error}") from error

    def _size(self, name: str) -> str:
        """Size of a hub model's weights in words, where the hub can be asked."""
        from huggingface_hub import HfApi, constants

        if constants.HF_HUB_OFFLINE:
            return "size unknown: offline"
        try:
            info = HfApi(token=self.token).model_info(
                name, revision=self.revision, files_metadata=True, timeout=_TIMEOUT
            )
        except Exception:  # no network, no such id, no access: it is said without a size
            return "size unknown: the hub did not answer"
        files = [s for s in info.siblings or () if s.rfilename.endswith(".safetensors")]
        total = sum(s.size or 0 for s in files)
        return f"{total / 1e9:.1f} GB" if total else "size unknown"


def _complete(folder: Path) -> bool:
    """Whether a cached snapshot has all that a load needs."""
    if (folder / ADAPTER_CONFIG).is_file() and not has_weights(folder):
        return (folder / ADAPTER_WEIGHTS).is_file()
    if not (folder / "config.json").is_file() or not has_weights(folder):
        return False
    if not (folder / WEIGHTS).is_file():  # with it there is enough to load, or to refuse by name
        try:
            weight_files(folder)
        except LoadError:
            return False
    return bool(read_json(folder / "config.json"))
