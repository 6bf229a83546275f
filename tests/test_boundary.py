"""What a user of Python sees of an error: one short traceback in a notebook, and the name that was probably meant."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idmetric
from idmetric import Embedder, IDSim, ImageReadError
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.errors import RequestError
from idmetric.metric.files.boundary import public
from idmetric.metric.files.hints import did_you_mean, near_file
from idmetric.metric.images.paths import IMAGE_ENDINGS

LINES = 12  # of a traceback in a notebook; 112 and more before errors were shortened
SIBLING = "did you mean 'mug_front.png'?"
# cells with a name that is mistyped, and what their last line says
CELLS = {
    "metric('mug_front.png', 'mug_fron.png')": SIBLING,
    "metric(['mug_front.png'] * 3, 'mug_fron.jpg')": SIBLING,
    "metric.pairwise(['mug_front.png', 'mug_fron.png'])": SIBLING,
    "metric.similarity('mug_front.png', 'mug_fron.png')": SIBLING,
    "metric.probability('mug_front.png', 'mug_fron.png')": SIBLING,
    "metric.embed(['mug_front.png', 'mug_fron.png'], workers=2)": SIBLING,
    "metric.encode(['mug_fron.png'])": SIBLING,
    "metric('mug_front.png', 'mug_front.png', mask_b='mug_fron.png')": SIBLING,
    "idmetric.score(metric, 'mug_fron.png', 'mug_front.png')": SIBLING,
    "idmetric.score(metric, 'mug_front.png', ['mug_side.png', 'mug_fron.png'])": SIBLING,
    "idmetric.score_pairs(metric, [('mug_front.png', 'mug_fron.png')])": SIBLING,
    "idmetric.match(metric, {'mug': 'mug_front.png'}, ['mug_side.png', 'mug_fron.png'])": SIBLING,
    "idmetric.match(metric, {'mug': 'mug_fron.png'}, 'mug_side.png')": SIBLING,
    "idmetric.consistency(metric, ['mug_side.png', 'mug_fron.png'])": SIBLING,
    "idmetric.IdentityLoss(metric, 'mug_fron.png')": SIBLING,
    "idmetric.embed_subject(metric, 'mug_fron.png', name='mug')": SIBLING,
    # found by a reader's thread, not before
    "idmetric.score(metric, 'mug_front.png', 'damaged.png')": "it is not an image of a known format",
    "idmetric.match(metric, {'mug': 'mug_front.png'}, 'damaged.png')": "it is not an image of a known format",
    "idmetric.IDSim('Tiny')": "did you mean 'tiny'?",
    "idmetric.IDSim('tiny', backbone_weights='model.pth')": "leave out backbone_weights",
    "idmetric.NearID('nerid')": "did you mean 'nearid'?",
    "idmetric.VisIDEmbed('visid_3')": "did you mean 'visid_3b'?",
    "idmetric.load('tinny')": "did you mean 'tiny'?",
    "idmetric.score(metric, 'mug_front.png', 'mug_side.png', treshold=.3)": "did you mean 'threshold'?",
    "idmetric.score_pairs(metric, [('mug_front.png', 'mug_side.png')], treshold=.3)": "did you mean 'threshold'?",
    "idmetric.match(metric, {'mug': 'mug_front.png'}, 'mug_side.png', treshold=.3)": "did you mean 'threshold'?",
    "metric('mug_front.png', 'mug_side.png', maks_a='m.png')": "did you mean 'mask_a'?",
    "idmetric.IDSim('tiny', devise='cpu')": "did you mean 'device'?",
    "idmetric.load('tiny', devise='cpu')": "did you mean 'device'?",
    "metric.similarity('mug_front.png', 'mug_side.png', maks_a='m.png')": "did you mean 'mask_a'?",
    "metric('mug_front.png', 'mug_side.png', 'clss')": "unknown distance 'clss'; choose one of cls, ",
    "metric('mug_front.png', 'mug_side.png', mask_a=['mug_fron.png'])": SIBLING,
    "idmetric.score('tiny', 'mug_front.png', 'mug_side.png')": "idmetric.load('tiny')",
    "idmetric.evaluation('folder', 'mugs', metric)": "mugs: no such file or folder",
    "idmetric.score(metric)": "missing 2 required positional arguments: 'references' and 'images'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mugs")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), np.uint8)
    for name, image in zip(("mug_front.png", "mug_side.png"), pixels, strict=True):
        Image.fromarray(image).save(folder / name)
    (folder / "damaged.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def tracebacks(folder: Path) -> dict[str, str]:
    """What a notebook shows for each cell."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    root = Path(idmetric.__file__).parents[1]
    start = (
        f"import sys\nsys.path.insert(0, {str(root)!r})\nimport idmetric\nmetric = idmetric.IDSim('tiny', device='cpu')"
    )
    cells = [nbformat.v4.new_code_cell(code) for code in (start, *CELLS)]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, allow_errors=True, resources={"metadata": {"path": str(folder)}}).execute()

    assert cells[0].outputs == []
    shown = {}
    for cell in book.cells[1:]:
        [error] = [output for output in cell.outputs if output.output_type == "error"]
        shown[cell.source] = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    return shown


@pytest.mark.parametrize("code", CELLS)
def test_a_mistyped_name_in_a_notebook_costs_a_traceback_of_12_lines_that_says_what_was_meant(
    code: str, tracebacks: dict[str, str]
) -> None:
    lines = tracebacks[code].splitlines()
    assert len(lines) <= LINES
    assert f"----> 1 {code}" in lines
    assert CELLS[code] in lines[-1]
    assert not [line for line in lines if "threads.py" in line or "concurrent" in line or "direct cause" in line]


@pytest.mark.parametrize(
    "call",
    [
        lambda metric, good, absent: metric(good, absent),
        lambda metric, good, absent: metric(good, [good, absent]),
        lambda metric, good, absent: metric.pairwise(good, absent),
        lambda metric, good, absent: metric.similarity(good, absent),
        lambda metric, good, absent: metric.embed([good, absent], batch_size=1),
        lambda metric, good, absent: idmetric.score(metric, good, [good, absent], batch_size=1),
        lambda metric, good, absent: idmetric.score_pairs(metric, [(good, good), (good, absent)], batch_size=1),
        lambda metric, good, absent: idmetric.score_pairs(metric, [(good, good, None, absent)], batch_size=1),
        lambda metric, good, absent: idmetric.match(metric, {"mug": good}, [good, absent]),
        lambda metric, good, absent: idmetric.match(metric, {"mug": good, "cup": absent}, good),
        lambda metric, good, absent: idmetric.embed_subject(metric, [good, absent], name="mug"),
    ],
)
def test_an_absent_file_is_found_before_the_model_embeds_anything(
    call: Callable[[Embedder, str, str], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = IDSim("tiny", device="cpu")

    def refuse(*_: Any) -> None:
        raise AssertionError("an image was embedded")

    monkeypatch.setattr(metric, "embed_pixels", refuse)
    with pytest.raises(ImageReadError, match="the file does not exist"):
        call(metric, str(folder / "mug_front.png"), str(folder / "absent.png"))


def test_images_that_are_skipped_are_not_looked_for_first(folder: Path) -> None:
    metric = IDSim("tiny", device="cpu")
    scores = idmetric.score(
        metric, folder / "mug_front.png", [folder / "mug_side.png", folder / "absent.png"], on_error="skip"
    )
    assert (len(scores), len(scores.skipped)) == (1, 1)


def test_an_error_of_the_package_loses_its_frames_and_a_fault_keeps_them() -> None:
    @public
    def request() -> None:
        """Raises as deep code does."""
        try:
            raise OSError("the disk")
        except OSError as error:
            raise RequestError("no such option") from error

    @public
    def fault() -> None:
        raise ValueError("a fault")

    with pytest.raises(RequestError) as raised:
        request()
    assert [frame.name for frame in traceback.extract_tb(raised.tb)][1:] == ["call"]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    with pytest.raises(ValueError, match="a fault") as raised_fault:
        fault()
    assert traceback.extract_tb(raised_fault.tb)[-1].name == "fault"


def test_an_error_in_a_function_of_the_callers_keeps_its_frames(folder: Path) -> None:
    """An encoder that opens a file of its own is where the fault is, not the call that was given the encoder."""
    metric = IDSim("tiny", device="cpu")

    def encoder(images: list[Image.Image]) -> Any:
        return metric.embed([str(folder / "absent.png")]).cls

    with pytest.raises(ImageReadError) as caught:
        idmetric.match(encoder, {"mug": folder / "mug_front.png"}, folder / "mug_side.png")
    assert "encoder" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_public_functions_keep_their_signatures_and_documentation() -> None:
    for function in (idmetric.score, idmetric.match, idmetric.load, Embedder.__call__, Embedder.embed, IDSim.__init__):
        assert "options" not in inspect.signature(function).parameters or function is idmetric.load
        assert len(inspect.signature(function).parameters) > 1
    assert "threshold" in inspect.signature(idmetric.score).parameters
    assert (idmetric.score.__doc__ or "").startswith("Compute distances")


def test_a_keyword_without_a_near_name_gets_pythons_words_alone() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        IDSim("tiny", zzz=1)  # type: ignore[call-arg]


def test_a_type_error_with_right_keywords_keeps_its_frames() -> None:
    with pytest.raises(TypeError) as raised:
        idmetric.score(IDSim("tiny", device="cpu"), 3, 4, threshold=0.1)  # type: ignore[arg-type]
    assert len(traceback.extract_tb(raised.tb)) > 2


@pytest.mark.parametrize(
    ("word", "names", "meant"),
    [
        ("Tiny", ["tiny", "nearid"], "; did you mean 'tiny'?"),
        ("TINY", ["tiny"], "; did you mean 'tiny'?"),
        ("resnet", ["tiny", "nearid"], ""),
    ],
)
def test_near_names_are_found_in_any_case(word: str, names: list[str], meant: str) -> None:
    assert did_you_mean(word, names) == meant


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("mug_frnot.png", SIBLING),
        ("Mug_Front.JPG", SIBLING),
        ("mug_front.jpeg", SIBLING),
        ("ab.png", ""),  # like every name in its ending alone
        ("absent/mug_front.png", ""),
        ("\0.png", ""),
    ],
)
def test_a_file_of_nearly_the_name_in_the_same_folder_is_suggested(folder: Path, path: str, meant: str) -> None:
    assert near_file(str(folder / path), IMAGE_ENDINGS).removeprefix("; ") == meant


@pytest.mark.parametrize("name", ["dreamsim", "DreamSim", "lpips"])
def test_a_measure_of_another_package_says_what_has_its_interface(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"a measure of another package.*idmetric.compat.{name.lower()}"):
        idmetric.load(name)


def test_a_mistyped_name_of_the_package_says_what_was_meant() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'IDsim'; did you mean 'IDSim'\?"):
        _ = idmetric.IDsim  # type: ignore[attr-defined]


def test_dir_lists_public_names_alone() -> None:
    assert dir(idmetric) == sorted(idmetric.__all__)
