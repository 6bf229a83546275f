"""`idmetric.evaluation`: a protocol from Python, and its results as an object.

result = idmetric.evaluation("generator", "outputs/", IDSim())
result.write("page.html")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from idmetric.data.manifest import checked
from idmetric.data.reading import read_data
from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.protocol import Protocol, find, modules
from idmetric.evaluate.protocols.common.result import Result, Value, as_csv, as_json, footnotes
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models
from idmetric.evaluate.settings import Checked
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, need, replacing
from idmetric.page import ROWS, Picture, notebook_table, short, write_page
from idmetric.tables import four

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.evaluate.report.page_pictures import PagePictures

_IMAGES = 6  # that a notebook shows


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of a protocol: a row of numbers for each model and group.

    Attributes:
        protocol: its name. results: of each model.
        data: the images. pictures: of them, for the page; None: they are read again.
    """

    protocol: str
    results: list[Result]
    data: DataFrame
    pictures: PagePictures | None = None

    def to_table(self) -> str:
        """The table that `idmetric eval` prints."""
        return tables.table(self.results)

    def to_csv(self) -> str:
        """A line for each number."""
        return as_csv(self.results)

    def to_json(self) -> str:
        """Everything but the scores of single images, which are in `results[...].items`."""
        return as_json(self.results)

    def to_html(self) -> str:
        """The page of `idmetric eval --html`.

        Raises:
            ImportError: without jinja2, matplotlib or scikit-learn.
        """
        from idmetric.evaluate.report.evaluation import eval_page

        return eval_page(self.results, self.data, self.pictures)

    def write(self, path: StrPath) -> None:
        """Write the page as .html, or the numbers as .csv, .json, .md or .tex, atomically.

        Raises:
            ValueError: for another ending.
        """
        ending = Path(path).suffix.lower()
        if ending == ".html":
            write_page(self.to_html(), path)
            return
        forms = {".csv": "csv", ".json": "json", ".md": "markdown", ".tex": "latex"}
        if ending not in forms:
            raise ValueError(f"{os.fspath(path)!r} ends in none of {', '.join(forms)}, .html")
        text = tables.FORMATS[forms[ending]](self.results)
        with replacing(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")

    def plot(self, number: str | None = None, ax: Any = None) -> Any:
        """Draw a number of each row with its interval; returns matplotlib's Axes.

        Args:
            number: its column; default: the first that any row has.
            ax: Axes to draw into; default: new ones.

        Raises:
            RequestError: for a column that no row has. ImportError: without matplotlib.
        """
        need("eval", "plot()", matplotlib="matplotlib")
        import matplotlib.pyplot as plt

        lines = [(result.model, row) for result in self.results for row in result.rows]
        numbers = [name for _, row in lines for name, entry in row.items() if isinstance(entry, Value)]
        column = number or next(iter(numbers), "")
        if column not in numbers:
            raise RequestError(f"no row has the number {column!r}")

        labels: list[str] = []
        values: list[Value] = []
        for model, row in lines:
            value = row.get(column)
            if isinstance(value, Value):
                row_labels = [str(entry) for entry in row.values() if entry and not isinstance(entry, Value)]
                labels.append(", ".join([model, *row_labels]))
                values.append(value)

        if ax is None:
            _, ax = plt.subplots(figsize=(6, 1 + 0.3 * len(values)), layout="constrained")
        heights = range(len(values))
        ax.plot([value.value for value in values], heights, "o")
        for height, value in enumerate(values):
            if value.low is not None and value.high is not None:
                ax.hlines(height, value.low, value.high)
        ax.set_yticks(heights, labels)
        ax.invert_yaxis()
        ax.set_xlabel(column)
        return ax

    def _repr_html_(self) -> str:
        """The first rows and the first images, as a notebook shows them."""
        rows = [row for result in self.results for row in result.rows]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        has_models = len(self.results) > 1
        lines = []
        for result in self.results:
            for row in result.rows:
                cells = [_text(row.get(name)) for name in columns]
                lines.append([result.model, *cells] if has_models else cells)
        heads = ["model", *columns] if has_models else columns
        numbers = notebook_table(heads, lines[:ROWS], len(lines), footnotes(self.results)[:ROWS])
        return numbers + self._first_images()

    def _first_images(self) -> str:
        """A row of small pictures; empty if none were kept."""
        uris: dict[str, str] = {}
        if self.pictures is not None:
            for path in self.data["path"].head(_IMAGES).dropna():
                uri = self.pictures.uri(path)
                if uri is not None:
                    uris[path] = uri
        if not uris:
            return ""
        names = short(list(uris))
        cells = [Picture(uri, name) for uri, name in zip(uris.values(), names, strict=True)]
        return notebook_table(names, [cells], 1)


def _text(entry: Any) -> Any:
    """A number with its interval, or a label."""
    if not isinstance(entry, Value):
        return entry
    if entry.low is None or entry.high is None:
        return four(entry.value)
    return f"{four(entry.value)} [{four(entry.low)}, {four(entry.high)}]"


def evaluation(
    protocol: str,
    data: StrPath | DataFrame | None,
    models: Any,
    *,
    pages: bool = True,
    **options: Any,
) -> Evaluation:
    """Run a protocol of `idmetric eval`.

    >>> idmetric.evaluation("generator", "outputs/", "tiny", bootstrap=0).write("page.html")  # doctest: +SKIP

    Args:
        protocol: a name of `idmetric eval --help`, such as "generator" or "folder".
        data: what --data takes, or a table with such columns; None for a protocol that needs none.
        models: a metric, a name of --model, or several of these in a list, or by their names in a dict.
        pages: keep small pictures of images for the page, so that it opens no file again.
        options: of the protocol, as its command calls them (`training="photos/"`, `by=("seed",)`); and of all
            protocols, see `EvalSettings`: distance, bootstrap, seed, store, look, on_error, batch_size, workers, out.

    Raises:
        RequestError: for an unknown protocol. TypeError: for an unknown option.
        ValueError: for data or settings that do not fit; and as `idmetric eval`.
    """
    if protocol not in modules():
        raise RequestError(f"unknown protocol {protocol!r}")
    chosen = find(protocol)
    settings_names = {entry.name for entry in fields(EvalSettings)}
    option_names = {entry.name for entry in fields(chosen.options)}
    for name in options:
        if name not in settings_names | option_names:
            raise RequestError(f"the protocol {protocol} has no option {name!r}")
    settings_values = {name: value for name, value in options.items() if name in settings_names}
    for name in ("store", "out"):
        if settings_values.get(name) is not None:
            settings_values[name] = Path(settings_values[name])
    if settings_values.get("on_error", "fail") not in ("fail", "skip"):
        raise RequestError(f"on_error must be 'fail' or 'skip', got {settings_values['on_error']!r}")
    settings = EvalSettings(**settings_values)
    protocol_options = chosen.options(**_values_of(chosen.options, options))

    path = None
    if isinstance(data, str | os.PathLike):
        data = path = Path(data)
        settings = replace(settings, data_name=settings.data_name or path.name)
    opened = open_data(chosen, data, settings, protocol_options)
    return measured(chosen, opened, _opened(models, settings), settings, protocol_options, {"data": path}, pages=pages)


def _values_of(config: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass among the options of a call.

    Paths and text may stand for each other, and a list or a single value for a tuple.

    Raises:
        RequestError: for a value that is none of those to choose from.
    """
    hints = get_type_hints(config)
    values = {}
    for entry in fields(config):
        if entry.name not in options:
            continue
        value = options[entry.name]
        kind = hints[entry.name]
        kinds = get_args(kind)
        if get_origin(kind) is Literal and value not in kinds:
            raise RequestError(f"{entry.name} must be one of {', '.join(map(repr, kinds))}, got {value!r}")
        if isinstance(value, str) and Path in kinds and str not in kinds:
            value = Path(value)
        elif isinstance(value, os.PathLike) and str in kinds and Path not in kinds:
            value = os.fspath(value)
        elif isinstance(value, list):
            value = tuple(value)
        elif get_origin(kind) is tuple and not isinstance(value, tuple):
            value = (value,)
        values[entry.name] = value
    return values


def open_data(
    protocol: Protocol[Checked], data: Path | DataFrame | None, settings: EvalSettings, options: Checked
) -> DataFrame:
    """The checked data of a protocol; ValueError without any, if it needs some."""
    if protocol.open_data is not None:
        return protocol.open_data(data, settings, options)
    if isinstance(data, Path):
        return read_data(data)
    if data is None and protocol.needs_data:
        raise RequestError(f"the protocol {protocol.name} needs data: a manifest, or a folder")
    return checked([] if data is None else data)


def measured(
    protocol: Protocol[Checked],
    data: DataFrame,
    models: Models,
    settings: EvalSettings,
    options: Checked,
    names_of_data: Mapping[str, Any],
    *,
    pages: bool,
) -> Evaluation:
    """Run a protocol on data and models that are open.

    Args:
        names_of_data: kept among the settings of the results, next to the options that name data.
        pages: see `evaluation`.
    """
    pictures = None
    if pages:
        from idmetric.evaluate.report.page_pictures import PagePictures

        pictures = PagePictures(len(data))
        settings = replace(settings, wants=(*settings.wants, pictures.take))
    results = protocol.run(data, models, settings, options)

    names = dict(names_of_data)
    for name in protocol.data_options:
        names[name] = getattr(options, name)
    traced = {name: value for name, value in names.items() if value is not None}
    traced_results = [replace(result, settings={**result.settings, **traced}) for result in results]
    return Evaluation(protocol.name, traced_results, data, pictures)


def _opened(models: Any, settings: EvalSettings) -> Models:
    """The models by their names."""
    if models is None:
        raise RequestError("no model is given: a metric, or a name such as 'tiny'")
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        sources: Sequence[Any] = models if isinstance(models, list | tuple) else [models]
        named = {}
        for source in sources:
            name = source.short_name if isinstance(source, Embedder) else str(source)
            if name in named:
                raise RequestError(f"two models are called {name!r}: give a dict with a name for each")
            named[name] = source
    opened: dict[str, Any] = {}
    for name, source in named.items():
        is_name = isinstance(source, str | os.PathLike)
        opened[name] = open_model(os.fspath(source), device=settings.device) if is_name else source
    return opened
