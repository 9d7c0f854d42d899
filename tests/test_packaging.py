"""What an installation is: light to import, typed, pinned, and honest about its version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import reward_lens

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOADED = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"


def packages_loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh process after the statement."""
    command = [sys.executable, "-c", f"{statement}; {LOADED}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def canonical(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Canonical name -> exact version; anything else in the file fails."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][0-9A-Za-z.]*)", line)
            assert match is not None, f"not an exact, portable pin: {line!r}"
            found[canonical(match[1])] = match[2]
    return found


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    listed = [*PROJECT["dependencies"], *(r for extra in extras for r in extra)]
    return [canonical(re.match(r"[A-Za-z0-9._-]+", r)[0]) for r in listed]


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "transformers", "pandas", "xarray", "scipy", "numpy", "datasets"}
    loaded = packages_loaded_by("import reward_lens")
    assert "reward_lens" in loaded
    assert not loaded & heavy


@pytest.mark.parametrize("room", ["assets", "data", "errors", "evidence"])
def test_the_rooms_below_the_models_do_not_import_torch(room):
    loaded = packages_loaded_by(f"import reward_lens.{room}")
    assert not loaded & {"torch", "transformers"}


def test_the_type_marker_ships():
    assert files("reward_lens").joinpath("py.typed").is_file()


def test_one_version():
    assert reward_lens.__version__ == PROJECT["version"] == version("reward-lens")


def test_the_two_pins_that_numbers_depend_on():
    # No local suffix: "+cpu" is not on every index.
    assert pins()["torch"] == "2.13.0"
    assert pins()["transformers"] == "5.24.0"


@pytest.mark.parametrize("name", requirements())
def test_every_requirement_is_pinned_and_installed_at_its_pin(name):
    assert name in pins(), f"add {name}==VERSION to constraints.txt"
    assert version(name).split("+")[0] == pins()[name]
