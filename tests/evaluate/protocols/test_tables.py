"""Tables of results: what is shown of them, pivots, widths, and LaTeX that compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.grids import View, grids
from idmetric.evaluate.protocols.common.latex import latex
from idmetric.evaluate.protocols.common.protocol import column_of, find, modules
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.table_columns import SHARED
from idmetric.evaluate.report.evaluation import PLOT_CAPTIONS
from idmetric.metric.errors import RequestError

IDENTITY = {"few": 0.86, "drift": 0.334, "good": 0.756, "swap_2": 0.018}
COPIES = {"few": 0.5, "drift": 0.0, "good": 0.0, "swap_2": 0.0}
FEW_COPIES = {"few": 0.08, "drift": 0.0, "good": 0.0, "swap_2": 0.05}


def value(number: float, count: int = 32) -> Value:
    return Value(number, number - 0.05, number + 0.05, count)


def generator(copies: Mapping[str, float] = FEW_COPIES, model: str = "tiny", shift: float = 0.0) -> Result:
    """Four methods, also by subject, and a difference of two."""
    rows: list[Row] = []
    for method, identity in IDENTITY.items():
        numbers = {"identity": value(identity + shift), "real": Value(0.7, None, None, 32)}
        rows.append({"method": method, "group": "all", **numbers, "copies": value(copies[method])})
        for subject, more in (("dog", 0.01), ("cat", -0.01)):
            by = {"identity": value(identity + shift + more, 4), "copies": value(copies[method], 4)}
            rows.append({"method": method, "group": f"subject: {subject}", **by})
    rows.append({"method": "few - good", "identity": value(0.104), "p": Value(0.047, None, None, 8)})
    return Result("generator", model, rows)


def whole() -> Result:
    result = generator()
    return Result("generator", "tiny", [row for row in result.rows if row.get("group", "all") == "all"])


def test_labels_and_numbers_that_all_rows_share_stand_below_the_table() -> None:
    grid, differences = grids([whole()])
    assert grid.labels == ["method"]
    assert grid.metrics == ["identity", "copies"]
    assert grid.same == {"model": "tiny", "n": "32", "real": "0.700"}
    assert [labels for labels, _ in grid.lines] == [[method] for method in IDENTITY]
    assert [numbers[0].value for _, numbers in grid.lines if numbers[0]] == list(IDENTITY.values())
    assert differences.title == "differences of methods"
    assert [labels for labels, _ in differences.lines] == [["few - good"]]
    assert differences.same["n"] == "32/8 (identity / p)"


def test_show_chooses_and_orders_columns_by_any_spelling() -> None:
    result = Result(
        "generator", "m", [{"method": m, "CLIP-T": value(v), "identity": value(v)} for m, v in COPIES.items()]
    )
    [grid] = grids([result], View(show=("IDENTITY", "clip_t")))
    assert grid.metrics == ["identity", "CLIP-T"]
    with pytest.raises(RequestError, match=r"no column vendi: there are CLIP-T, identity"):
        grids([result], View(show=("vendi",)))


def test_no_column_is_shown_by_an_empty_name() -> None:
    result = Result("dreambench", "tiny", [{"method": "few", "M-H": value(0.5), "±": value(0.1)}])
    assert grids([result], View(show=("±", "mh")))[0].metrics == ["±", "M-H"]
    with pytest.raises(RequestError, match="no column : there are M-H, ±"):
        grids([result], View(show=("M-H", "")))


@pytest.mark.parametrize("view", [View(rows="method"), View(columns="subject")])
def test_half_a_pivot_is_refused(view: View) -> None:
    with pytest.raises(RequestError, match="belong together"):
        grids([generator()], view)


def test_a_pivot_has_one_table_for_each_metric() -> None:
    identity, copies = grids([generator()], View("method", "subject", ("identity", "copies")))
    assert (identity.title, copies.title) == ("identity", "copies")
    assert identity.labels == ["method"]
    assert identity.metrics == ["dog", "cat"]
    found = {labels[0]: [v.value for v in numbers if v] for labels, numbers in identity.lines}
    assert found == {m: pytest.approx([v + 0.01, v - 0.01]) for m, v in IDENTITY.items()}
    [turned] = grids([generator()], View("subject", "method"))
    assert turned.title == "identity"
    assert [labels[0] for labels, _ in turned.lines] == ["dog", "cat"]


def test_models_and_metrics_are_dimensions_too() -> None:
    results = [generator(), generator(model="other", shift=0.1)]
    [models] = grids(results, View("method", "model"))
    assert models.metrics == ["tiny", "other"]
    assert next([round(v.value, 3) for v in numbers if v] for _, numbers in models.lines) == [0.86, 0.96]
    [metrics] = grids(results, View("metric", "method", ("identity", "copies")))
    assert metrics.labels == ["model", "metric"]
    assert [labels for labels, _ in metrics.lines][:2] == [["tiny", "identity"], ["tiny", "copies"]]
    for rows, columns, words in (("method", "class", "no row has a class"), ("method", "method", "are both method")):
        with pytest.raises(RequestError, match=words):
            grids(results, View(rows, columns))


@pytest.mark.parametrize("width", [200, 80, 45, 30])
def test_a_terminal_never_wraps_and_says_what_is_missing(width: int) -> None:
    text = tables.table([whole()], width=width, elsewhere="results/generator.md")
    table = text.splitlines()[:5]
    assert max(map(len, table)) <= width
    shown = {name for name in ("identity", "copies") if name in table[0]}
    [*rest] = re.findall(r"not shown for lack of room: (.*) \(results/generator.md\)", text)
    missing = set(rest[0].split(", ")) if rest else set()
    assert shown | missing == {"identity", "copies"} | ({"intervals"} if width < 80 else set())


def test_every_row_of_a_markdown_table_has_every_cell() -> None:
    text = tables.markdown([whole()])
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert "| few | 0.860 [0.810, 0.910] | 0.080 [0.030, 0.130] |" in table
    assert {line.count("|") for line in table[:6]} == {4}


# LaTeX


def cells(text: str) -> list[list[str]]:
    """The cells of the lines of the first tabular."""
    inside = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line.removesuffix(r" \\") for line in inside.splitlines() if line.endswith(r" \\")]
    return [re.split(r"(?<!\\) & ", line) for line in lines]


def test_the_best_number_is_bold_and_the_second_underlined_by_direction() -> None:
    head, *rows = cells(latex([whole()]))
    assert head == ["method", r"identity $\uparrow$", r"copies $\downarrow$"]
    assert {row[0]: row[1:] for row in rows} == {
        "few": [r"\textbf{0.860}", "0.080"],
        "drift": ["0.334", r"\textbf{0.000}"],
        "good": [r"\underline{0.756}", r"\textbf{0.000}"],
        r"swap\_2": ["0.018", r"\underline{0.050}"],
    }


def test_a_copier_wins_no_column_and_the_caption_says_why() -> None:
    copies = generator(COPIES)
    text = latex([copies])
    rows = {tuple(row[:2]): row[3:] for row in cells(text)[1:]}
    for subject in ("", "dog", "cat"):
        assert not any("text" in cell or "underline" in cell for cell in rows[r"few$^\dagger$", subject])
        assert rows["good", subject][0].startswith(r"\textbf")
        assert rows["drift", subject][0].startswith(r"\underline")
    [caption, _] = re.findall(r"\\caption\{(.*)\}", text)
    assert r"$^\dagger$ more than 10 \% of the images are copies, so that no number of it is marked." in caption

    turned = cells(latex([copies], View("subject", "method")))
    assert turned[0][1] == r"few$^\dagger$ $\uparrow$"
    assert all("text" not in row[1] for row in turned[1:])


@pytest.mark.parametrize(("p", "bold"), [(0.047, True), (0.25, False)])
def test_a_number_that_may_be_ahead_by_chance_is_not_bold(p: float, bold: bool) -> None:
    result = whole()
    for a, b in combinations(IDENTITY, 2):
        p_holm = p if "few" in (a, b) else 1.0
        result.keep("tests", a=[a], b=[b], metric=["identity"], difference=[0.1], low=[None], high=[None], p=[p_holm],
                    p_holm=[p_holm], subjects=[8], pairs=[32], tests=[6])  # fmt: skip
    text = latex([result])
    rows = {row[0]: row[1] for row in cells(text)[1:]}
    assert (rows["few"] == r"\textbf{0.860}") == bold
    assert ("underline" in rows["good"]) == bold
    unclear = "No marks in identity, copies: no test shows that the best is ahead of all (sign-flip"
    assert (unclear in text) == (not bold)
    behind = "Outside of identity, no marks of drift, good, swap\\_2: behind in identity."
    assert (behind in text) == bold


@pytest.mark.parametrize("p_wild", [0.03, 0.9])
def test_a_method_behind_in_identity_is_marked_in_no_other_column(p_wild: float) -> None:
    """`wild` shows the most different images, of another subject: .888 was bold."""
    numbers = {"best": (0.8, 0.3), "level": (0.79, 0.5), "wild": (0.3, 0.888)}
    rows: list[Row] = []
    for method, (identity, diversity) in numbers.items():
        rows.append({"method": method, "group": "all", "identity": value(identity), "diversity": value(diversity)})
    result = Result("generator", "tiny", rows)
    for column, metric in enumerate(("identity", "diversity")):
        for a, b in combinations(numbers, 2):
            difference = numbers[a][column] - numbers[b][column]
            p = {("identity", "level"): 0.9, ("diversity", "wild"): p_wild}.get((metric, b), 0.03)
            result.keep("tests", a=[a], b=[b], metric=[metric], difference=[difference], low=[None], high=[None],
                        p=[p], p_holm=[p], subjects=[8], pairs=[32], tests=[3])  # fmt: skip
    text = latex([result])
    assert {row[0]: row[1:] for row in cells(text)[1:]} == {
        "best": ["0.800", "0.300"],
        "level": ["0.790", r"\textbf{0.500}"],
        "wild": ["0.300", "0.888"],
    }
    assert "Outside of identity, no marks of wild: behind in identity." in text
    assert "No marks in identity: no test shows" in text


def test_methods_without_a_test_have_no_marks() -> None:
    """With other prompts and seeds, or against a method that copies, no two methods are compared."""
    result = whole()
    result.keep("tests", a=[], b=[], metric=[])
    text = latex([result])
    assert "textbf" not in text
    assert "No marks: no two methods were tested against each other." in text


def test_a_column_that_no_test_compares_has_no_marks() -> None:
    result = whole()
    for a, b in combinations(IDENTITY, 2):
        result.keep("tests", a=[a], b=[b], metric=["identity"], difference=[0.1], low=[None], high=[None], p=[0.047],
                    p_holm=[0.047], subjects=[8], pairs=[32], tests=[6])  # fmt: skip
    rows = cells(latex([result]))[1:]
    assert {row[2] for row in rows} == {"0.080", "0.000", "0.050"}


def test_by_several_models_no_number_is_marked_by_its_size_alone() -> None:
    """A larger cosine by another model is no better method, and no test compares the two."""
    results = [whole(), whole()]
    results[1] = replace(results[1], model="other")
    for result in results:
        for a, b in combinations(IDENTITY, 2):
            result.keep("tests", a=[a], b=[b], metric=["identity"], difference=[0.1], low=[None], high=[None],
                        p=[0.047], p_holm=[0.047], subjects=[8], pairs=[32], tests=[6])  # fmt: skip
    text = latex(results)
    assert "textbf" not in text
    assert "underline" not in text
    assert "No marks: methods are tested against each other over all subjects, by one model at a time." in text


def test_the_caption_names_the_threshold_and_the_smoke_test_model() -> None:
    rows: list[Row] = [{"method": m, "group": "all", "SCR": value(v)} for m, v in (("a", 0.5), ("b", 0.6))]
    result = Result("generator", "tiny", rows, {"model": "IDSim:tiny"}, {"scr": 0.4123})
    [caption] = re.findall(r"\\caption\{(.*)\}", latex([result]))
    assert "SCR's threshold is 0.412 by tiny." in caption
    assert "tiny is a smoke-test model, not for a paper." in caption
    for text in (tables.table([result]), tables.markdown([result])):
        assert "tiny is a smoke-test model, not for a paper" in text
    large = replace(result, signature={"model": "IDSim:dinov3_vitl16"})
    assert "smoke-test" not in latex([large]) + tables.table([large])


def test_models_compete_within_each_row_of_the_others() -> None:
    results = [generator(), generator(model="other", shift=0.1)]
    rows = cells(latex(results))[1:]
    alone = [row for row in rows if row[:3] == ["other", "few", ""]]
    assert [row[4] for row in alone] == [r"\textbf{0.960}"]


def test_methods_compete_within_a_subject() -> None:
    rows = {tuple(row[:2]): row[3] for row in cells(latex([generator()]))[1:]}
    for subject in ("dog", "cat"):
        assert [method for method in ("few", "drift", "good") if "textbf" in rows[method, subject]] == ["few"]
        assert "underline" in rows["good", subject]


def test_a_papers_numbers_are_not_marked_and_a_bracket_is_no_option() -> None:
    rows: list[Row] = [
        {"method": f"[{m}]", "mAP@1k": Value(v, None, None, 3, v + 0.1)} for m, v in (("V", 0.5), ("W", 0.6))
    ]
    text = latex([Result("ilias", "m", rows)])
    assert [row[1:] for row in cells(text)[1:]] == [["0.500", "0.600"], [r"\textbf{0.600}", "0.700"]]
    assert "{}[V] & " in text


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    rows: list[Row] = [{"method": m, "mAP": Value(v, v, 0.5, 3)} for m, v in (("a", -0.0004), ("b", 0.25))]
    result = Result("folder", "m", rows)
    assert "0.000 [0.000, 0.500]" in tables.table([result])
    assert "-0.000" not in tables.table([result]) + latex([result], View(intervals=True)).replace("$", "")


def test_an_empty_pivot_is_an_error() -> None:
    rows: list[Row] = [{"a": "x", "mAP": value(0.5)}, {"b": "y", "mAP": value(0.6)}]
    with pytest.raises(RequestError, match="no row has both a a and a b"):
        grids([Result("folder", "m", rows)], View("a", "b"))


def test_the_caption_says_what_each_column_is() -> None:
    """In a long one; in a short one, comments do."""
    result = replace(whole(), signature={"revision": "abc", "idmetric": "1.0"})
    definitions = ("identity: mean over images x", "copies: share of images", "lower is better")
    for form in ("short", "long"):
        text = latex([result], View(caption=form))
        caption, *_ = re.findall(r"\\caption\{(.*)\}", text)
        for words in ("model tiny (abc)", "idmetric 1.0", "n 32", "real 0.700"):
            assert words in caption
        comments = "".join(line for line in text.splitlines() if line.startswith("% "))
        for words in definitions:
            assert (words in caption) == (form == "long")
            assert (words in comments) == (form == "short")
    assert "[0.8" not in text
    assert r"{\scriptsize [0.810, 0.910]}" in latex([whole()], View(intervals=True))


@pytest.mark.parametrize("count", [1, 8, 80])
def test_a_short_caption_has_at_most_sixty_words_and_loses_none(count: int) -> None:
    """The page of the example had a caption of 250 words. What does not fit stands in comments."""
    results = []
    for number in range(count):
        result = replace(generator(COPIES), model=f"m{number}", signature={"revision": f"r{number}"})
        for row in result.rows:
            row["SCR"] = value(0.25, 8)
        results.append(replace(result, settings={"scr": 0.5 + number / 1000}))
    for view in (View(), View("method", "subject", ("identity",)), View("model", "metric", intervals=True)):
        text = latex(results, view)
        captions = re.findall(r"\\caption\{(.*)\}", text)
        comments = "\n".join(line for line in text.splitlines() if line.startswith("% "))
        assert captions
        for caption in captions:
            assert len(caption.split()) <= 60
        for number in range(count):
            assert f"m{number} (r{number})" in "".join(captions) + comments
        if view == View():
            assert f"SCR's threshold is {0.5 + (count - 1) / 1000:.3f}" in "".join(captions) + comments
        long_captions = re.findall(r"\\caption\{(.*)\}", latex(results, replace(view, caption="long")))
        assert all("higher is better" in caption for caption in long_captions[:1])


def test_captions_of_plots_are_short() -> None:
    assert all(len(caption.split()) <= 60 for caption in PLOT_CAPTIONS.values())


def test_latex_is_balanced_and_compiles(tmp_path: Path) -> None:
    odd = Result(
        "generator", "a_b%$#{}~^\\&±<>|", [{"method": f"m_{k}", "identity": value(-0.5 + k)} for k in range(3)]
    )
    text = latex([odd, generator()], View(intervals=True))
    text += latex([generator()], View("method", "subject", ("identity", "copies")))
    plain = re.sub(r"\\.", "", text)
    assert plain.count("{") == plain.count("}")
    assert text.count(r"\begin{") == text.count(r"\end{")
    for part in text.split(r"\begin{tabular}")[1:]:
        [columns] = re.findall(r"^\{(\w+)\}", part)
        assert {len(row) for row in cells(part)} == {len(columns)}
    if (program := shutil.which("pdflatex") or shutil.which("tectonic")) is not None:
        page = tmp_path / "page.tex"
        page.write_text(f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{text}\\end{{document}}")
        made = subprocess.run(
            [program, page.name], cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
        assert made.returncode == 0, made.stdout.decode()[-2000:]


def test_a_column_has_a_sentence_a_direction_and_its_own_name() -> None:
    columns = dict(SHARED)
    for protocol in modules():
        columns |= {f"{protocol}/{name}": column for name, column in find(protocol).columns.items()}
    for name, column in columns.items():
        assert column.better in (-1, 0, 1)
        assert column.says[0].islower() or column.says[:3].isupper() or column.says[0].isupper(), name
        assert not column.says.endswith("."), name
    assert column_of("mAP@100") is SHARED["mAP"]
    assert column_of("real SCR@0.5", "generator") is columns["generator/real SCR"]
    assert column_of("identity", "sensitivity") is not column_of("identity", "generator")
    assert column_of("unheard of", "folder") is None
    assert column_of("mAP", "a protocol of somebody else") is SHARED["mAP"]
