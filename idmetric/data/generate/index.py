"""Check of a pipeline's index: it may name classes of diffusers and transformers, but no other code."""

from __future__ import annotations

from pathlib import Path

from idmetric.io import json_file

LIBRARIES = ("diffusers", "transformers")


def refused(folder: Path) -> str | None:
    """The reason not to load the folder, or None if it is safe.

    Some versions of diffusers import a module of the folder that its `model_index.json` names, or one with the name of
    a component's library. If the index is absent or not JSON, diffusers reports it.
    """
    try:
        index = json_file.read(folder / "model_index.json")
    except (OSError, ValueError):
        return None

    if not isinstance(index, dict) or not isinstance(index.get("_class_name"), str):
        return "its model_index.json names no class of diffusers"
    if (folder / "None.py").exists():  # taken for the pipeline's code
        return "it holds None.py, which some versions of diffusers run"
    for component, value in index.items():
        if component.startswith("_") or not isinstance(value, list):
            continue
        library = value[0] if len(value) == 2 else None
        if value == [None, None]:
            continue
        if not (isinstance(library, str) and isinstance(value[1], str) and _known(library)):
            return f"its model_index.json takes {component!r} from {library!r}, neither diffusers nor transformers"
        if (folder / component / f"{library}.py").exists():
            return f"it holds {component}/{library}.py, and code in a folder of weights is not run"

    return None


def _known(library: str) -> bool:
    """Whether it is diffusers, transformers, or a folder of diffusers' pipelines such as stable_diffusion."""
    import diffusers

    pipelines = Path(diffusers.__file__).parent / "pipelines"
    return library in LIBRARIES or (library.isidentifier() and (pipelines / library / "__init__.py").is_file())
