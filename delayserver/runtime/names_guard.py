"""Finds foreign packages that hide ours. Others use the names `wheel`, `store` and `ops` too, mostly PyPA's wheel.

In site-packages two packages of one name share the folder, and both work. With a checkout or an editable install, a
foreign package with an ``__init__.py`` wins the name, and ours cannot be found. The guard gives the reason before a
traceback appears. It imports no code of these packages.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import PurePath
from typing import Final

PROBES: Final = (("wheel", "hashed_wheel"), ("store", "errors"), ("ops", None))
"""Names that other distributions use too, each with a module that only ours has. The server does not import ops, so its
folder may be missing, but a foreign package may not replace it."""


@dataclass(frozen=True, slots=True)
class NameTaken:
    """A package of ours that cannot be found. `found` is the path that Python finds instead, or None."""

    name: str
    expected: str
    found: str | None

    def explain(self) -> str:
        """One line for the operator: the package in the way, and how to remove it."""
        if self.found is None:
            return (
                f"package {self.name!r} of delayserver is missing (expected in {self.expected}): "
                f"the installation is incomplete, install delayserver again"
            )
        owners = _distributions_of(self.name)
        remedy = (
            f"`{sys.executable} -m pip uninstall {' '.join(owners)}`" if owners else f"remove or rename {self.found}"
        )
        return (
            f"another package {self.name!r} ({self.found}) hides the one of delayserver ({self.expected}); "
            f"{remedy}, or install delayserver without -e so that both live side by side"
        )


def find_taken_names(root: str | None = None) -> list[NameTaken]:
    """Our packages that Python would not find beside `delayserver`. ``root`` is the folder that should hold them."""
    base = PurePath(root) if root is not None else PurePath(__file__).parents[2]
    return [taken for name, probe in PROBES if (taken := _check(base, name, probe)) is not None]


def _check(base: PurePath, name: str, probe: str | None) -> NameTaken | None:
    expected = base / name
    spec = _find(name)
    locations = [PurePath(location) for location in (spec.submodule_search_locations or ())] if spec else []
    if expected in locations:
        if probe is None:
            return None
        inner = PathFinder.find_spec(f"{name}.{probe}", [str(location) for location in locations])
        if inner is not None and inner.origin is not None and PurePath(inner.origin).parent == expected:
            return None
        found = inner.origin if inner is not None else None
    else:
        if spec is None and probe is None:
            return None
        found = (spec.origin or str(locations[0] if locations else name)) if spec else None
    return NameTaken(name, str(expected), found)


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _distributions_of(name: str) -> list[str]:
    # The import is slow, and only a broken environment needs it.
    from importlib.metadata import packages_distributions

    return sorted({owner for owner in packages_distributions().get(name, []) if owner != "delayserver"})
