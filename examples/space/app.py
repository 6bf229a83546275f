"""A page to try the metric on: a reference and candidates in, candidates sorted by distance out, with heatmaps.

pip install -r examples/space/requirements.txt
python examples/space/app.py            # the embedded model, no download
python examples/space/app.py nearid     # or any that idmetric.load takes
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from PIL import Image

from idmetric import Embedder, ImageReadError, demo_images, load
from idmetric.metric.distance import DISTANCES
from idmetric.metric.heatmap import heatmaps, overlay
from idmetric.metric.images import read_image
from idmetric.scoring.calibration import calibration_of

HEADERS = ["rank", "image", "distance", "answer"]


def compare(
    metric: Embedder, reference: Image.Image | None, candidates: list[str] | None, distance: str, show_heat: bool
) -> tuple[list[list[Any]], list[tuple[Image.Image, str]]]:
    """The rows of the table, and the pictures with their captions, nearest first.

    Raises:
        ValueError: if an image is missing or cannot be read; the page shows the message.
    """
    if reference is None or not candidates:
        raise ValueError("Give a reference and at least one candidate.")
    try:
        embedded = metric.embed(reference)
        far = metric(embedded, candidates, distance).tolist()
        maps = heatmaps(metric, embedded, candidates) if show_heat else [None] * len(candidates)
    except ImageReadError as error:
        raise ValueError(f"{Path(error.source).name}: {error.reason}") from error

    rows: list[list[Any]] = []
    pictures = []
    for rank, k in enumerate(sorted(range(len(candidates)), key=far.__getitem__), 1):
        name = Path(candidates[k]).name
        rows.append([rank, name, round(far[k], 4), answer(metric, far[k], distance)])
        heat = maps[k]
        picture = overlay(candidates[k], heat, low=0, high=1) if heat is not None else read_image(candidates[k])
        pictures.append((picture, f"{rank}. {name}: {far[k]:.3f}"))
    return rows, pictures


def answer(metric: Embedder, far: float, distance: str) -> str:
    """Same, unsure or different, by the model's calibration; empty without one of this distance."""
    calibration = calibration_of(metric, distance=distance)
    return "" if calibration is None else calibration.answer(far)


def build(metric: Embedder) -> Any:
    """The page."""
    import gradio as gr

    def run(*given: Any) -> Any:
        try:
            return compare(metric, *given)
        except ValueError as error:
            raise gr.Error(str(error)) from error

    reference_file, *candidate_files = map(str, demo_images().values())
    with gr.Blocks(title="idmetric") as page:
        gr.Markdown("# Do these images show one subject?\nDistance to the reference: lower = more surely the same.")
        with gr.Row():
            with gr.Column():
                reference = gr.Image(type="pil", label="Reference", value=reference_file)
                candidates = gr.File(
                    file_count="multiple", file_types=["image"], label="Candidates", value=candidate_files
                )
                distance = gr.Dropdown(list(DISTANCES), value="cls", label="Distance")
                heat = gr.Checkbox(True, label="Show where the reference is found")
                button = gr.Button("Compare", variant="primary")
            with gr.Column():
                table = gr.Dataframe(headers=HEADERS, label="Nearest first", interactive=False)
                pictures = gr.Gallery(label="Nearest first", columns=3)
        signature = metric.signature()
        gr.Markdown(" · ".join(f"{name}: {value}" for name, value in signature.items() if name != "distance"))
        button.click(run, [reference, candidates, distance, heat], [table, pictures], api_name="compare")
    return page


def main(model: str = "tiny") -> None:
    """Serve the page on this machine."""
    build(load(model)).launch()


def smoke() -> None:
    """Compare the example images without a page, and without gradio."""
    candidates = [str(path) for path in demo_images().values()]
    with Image.open(candidates[0]) as reference:
        for row in compare(load("tiny"), reference, candidates, "cls", True)[0]:
            print(*row)


if __name__ == "__main__":
    smoke() if "--smoke" in sys.argv[1:] else main(*sys.argv[1:2])
