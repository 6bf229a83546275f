"""Published sets that are a table or a list, and any other table.

`SETS` names the columns of each set that is one table, and the function that makes the rows of a manifest of one of
its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from PIL import Image

from idmetric.data.importers.folders import FolderImage, pictures
from idmetric.data.importers.run import ImportJob, png
from idmetric.data.importers.source import Record, Row, as_list, locate, name_of, read_json, scalars
from idmetric.data.manifest import COLUMNS, ManifestError, refuse_boxes
from idmetric.data.split import split_name
from idmetric.metric.images import ImageReadError, open_image
from idmetric.metric.paths import matching
from idmetric.tables import number_of

PARTS = ("train", "test", "test_dense")  # of PODS
UNED = {  # folder -> name of the dataset, and ILGen's domain (Real-S and Real-ALL, section 4.1)
    "met": ("MET", "art"),
    "gldv2": ("GLDv2", "landmark"),
    "sop": ("SOP", "product"),
    "inshop": ("InShop", "product"),
    "rp2k": ("RP2k", "product"),
}
_MIN_VOTES = 6  # the published benchmark of NIGHTS has triplets with at least six votes


# Pairs and triplets


def _nights(job: ImportJob, record: Record) -> list[Row]:
    """Three rows for each triplet with enough votes (NIGHTS, Fu et al., NeurIPS 2023): slots anchor, left and right.

    The label of left and right is the share of votes for it. Identities stay empty, because people judged similarity,
    not identity.
    """
    if record["votes"] is not None and record.number_in("votes") < _MIN_VOTES:
        return []
    left = record.number_in("left_vote")
    right = 1 - left if record["right_vote"] is None else record.number_in("right_vote")  # of counts, or of 0 and 1
    if left + right == 0:
        raise ManifestError(f"{record}: left_vote and right_vote give no shares")

    group = record.text("id") or str(record.number)
    shared = {
        "group": group,
        "split": record["split"],
        "text": record["prompt"],
        "parameters": {"source": record.source.label, "votes": record["votes"]},
    }
    if record["is_imagenet"] is not None:
        shared["x_imagenet"] = str(record["is_imagenet"]).lower()

    labels = {"anchor": None, "left": left / (left + right), "right": right / (left + right)}
    paths = {"anchor": "ref_path", "left": "left_path", "right": "right_path"}
    rows = []
    for slot, label in labels.items():
        row = {"id": f"{group}/{slot}", "slot": slot, "path": record[paths[slot]], "label": label}
        rows.append(row | shared)
    return rows


def _subjects2k(job: ImportJob, record: Record) -> list[Row]:
    """Two rows for each pair of Subjects200K (Tan et al., OminiControl) with human votes (ID-Sim, appendix D.2).

    A pair is "same" if at least 0.8 of the votes say so. It is a group with the slots anchor and candidate. Both images
    were generated in one canvas by FLUX.1 (OminiControl, section 4).
    """
    pair = record.text("pair_id") or str(record.number)
    label = record.number_in("binary_label")
    parameters = {"source": record.source.label, **scalars(record.values, "pair_id", "binary_label")}
    parameters["human_votes"] = as_list(record["human_votes"])
    shared: Row = {
        "group": pair,
        "split": record.shard.split,
        "engine": "FLUX.1",
        "parameters": parameters,
    }
    anchor = {
        "id": f"{pair}/anchor",
        "identity": pair,
        "path": record["reference_image"],
        "slot": "anchor",
    }
    candidate = {
        "id": f"{pair}/candidate",
        "identity": pair if label == 1 else f"{pair}/other",
        "path": record["test_image"],
        "slot": "candidate",
        "label": label,
    }
    return [anchor | shared, candidate | shared]


def _mtg(job: ImportJob, record: Record) -> list[Row]:
    """Two views of an object, each also with one part inpainted (Mind-the-Glitch, Eldesokey et al.).

    The inpainted image is a part-edit of the original, with its oracle score (NearID, section 3.4). It comes "from a
    single source (SDXL)" (section 3.3).
    """
    rows: list[Row] = []
    split = record["split"] or record.shard.split
    identity = "/".join(filter(None, (split, record.text("id") or f"{record.number:05d}")))
    for view in (1, 2):
        original = record[f"image_{view}_original"]
        inpainted = record[f"image_{view}_inpainted"]
        subject = job.keep(record[f"image_{view}_object_mask"], record.source.locate)
        part = job.keep(record[f"image_{view}_part_mask"], record.source.locate)
        scene = f"{identity}/view{view}"
        shared: Row = {
            "split": split,
            "domain": "objects",
            "category": record["category"],
            "background": f"{job.dataset}/{scene}",
            "parameters": record.about("id", "split", "category"),
            "mask": subject,
            "x_view": view,
        }
        if original:
            rows.append({"identity": identity, "id": scene, "path": original, **shared})
        if inpainted:
            edit: Row = {
                "identity": f"{scene}/edit",
                "id": f"{scene}/edit",
                "path": inpainted,
                "part_mask": part,
                "role": "part-edit",
                "engine": "SDXL",
                "parent": scene if original else None,
                "oracle": oracle_score(subject, part),
            }
            rows.append(edit | shared)
    return rows


def oracle_score(subject: Path | None, part: Path | None) -> float | None:
    """Share of the object that a part edit kept: 1 - |part| / |object|, higher = less changed.

    As in NearID's released code, a mask's area is the number of its pixels above 0, a part that is larger than its
    object gives less than 0, and an empty object or a missing mask gives 0. None for a mask that cannot be read, which
    the check of the files reports.

    Args:
        subject, part: files of the masks of the object and of the edited part.

    Source: NearID, section 3.4.
    """
    from idmetric.metric.masks import read_mask  # needs torch

    if subject is None or part is None:
        return 0.0
    try:
        subject_mask = read_mask(subject)
        height, width = subject_mask.shape
        part_mask = read_mask(part, (height, width))
    except ImageReadError:
        return None
    area = int((subject_mask > 0).sum())
    return 1 - int((part_mask > 0).sum()) / area if area else 0.0


# Photos of objects


def pods(job: ImportJob) -> Iterator[Row]:
    """PODS: 100 household objects (Sundaram et al., personalized representations; ID-Sim, appendix D.1).

    As a table: image, mask, label, scene_type in the parts train (3 images of each object, the gallery), test and
    test_dense (12 of each, the queries). As folders: train/NAME/*.jpg, test/..., with train_masks/, test_masks/.

    All parts show the same objects, so they are not splits of a manifest: the part goes to the column `x_part`.
    pods_info.json in the same folder gives the `split` of an object (val or test); without it, the split is test.
    """
    root = Path(job.sources[0])
    index_file = root / "pods_info.json"
    index = read_json(index_file, dict) if index_file.is_file() else {}

    def photo(label: str, part: str | None, columns: Row) -> Row:
        about: Row = {
            "identity": label,
            "split": index.get("class_to_split", {}).get(label, "test"),
            "domain": "objects",
            "category": index.get("class_to_sc", {}).get(label),
            "x_part": part,
        }
        return about | columns

    def of_table(record: Record) -> list[Row]:
        label = record.text("label")
        if label is None:
            raise ValueError("no label")
        part = split_name((record.shard.split or "").lower()) or None
        columns = {
            "id": f"{part or 'all'}/{record.number:05d}",
            "path": record["image"],
            "mask": record["mask"],
            "parameters": record.about("label"),
        }
        return [photo(label, part, columns)]

    def of_folder(picture: FolderImage) -> list[Row]:
        part, *folders = picture.folders
        part = split_name(part.lower())
        if part not in PARTS or len(folders) != 1:
            layout = f"{'/, '.join(PARTS)}/ and one folder for each object"
            raise ManifestError(f"{picture}: expected {layout}")
        return [photo(folders[0], part, picture._asdict())]

    if any(path.is_dir() and split_name(path.parent.name.lower()) in PARTS for path in matching(root, "*/*/")):
        photos = pictures(root)
        return job.rows(photos, of_folder)
    return job.rows(job.open("image", "label"), of_table)


def syncd(job: ImportJob) -> Iterator[Row]:
    """SynCD: two or three generated images of an object in different contexts (Kumari et al., ICCV 2025).

    NearID takes its identities from the "rigid" partition (section 3.3), as `curate --recipe nearid` does. The
    published folder (`nupurkmr9/syncd` on the Hub, its archives unpacked):

        metadata.json                [{"filenames": ["12/0.png", ...], "prompts": [...], "category": "rigid",
                                       "category_description": ..., "objaverse_id": ...}, ...]
        12/0.png   12/masks/0.jpg    an image and its mask, black outside the object

    A record of two images or more is an identity. Its partition goes to the column x_partition, the object's
    description to `category`. Masks are written again as 0 and 255 in the size of their image, because the published
    ones are gray JPEGs.
    """
    table = job.folder() / "metadata.json"
    if not table.is_file():
        raise ManifestError(f"{table.parent}: no {table.name}; download nupurkmr9/syncd and unpack its archives there")

    def views(record: Row) -> list[Row]:
        try:
            names = [str(name) for name in record["filenames"]]
            prompts = record.get("prompts") or [None] * len(names)
            views = [*zip(names, prompts[: len(names)], strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = "'filenames' must be a list of paths, 'prompts' a list with a text for each"
            raise ManifestError(f"{table}: {str(record)[:60]}: {reason}") from error
        if len(views) < 2:
            return []

        identity = PurePosixPath(names[0]).parent.name
        about = {"objaverse_id": record["objaverse_id"]} if record.get("objaverse_id") else {}
        rows = []
        for view, (name, prompt) in enumerate(views, 1):
            file = locate(name, table.parent, str(table), inside=True)
            row = {
                "identity": identity,
                "id": f"{identity}/view{view}",
                "path": file,
                "mask": _mask_of_syncd(file),
                "domain": "objects",
                "category": record.get("category_description") or None,
                "background": f"{job.dataset}/{identity}/view{view}",
                "text": prompt,
                "parameters": {"file": name, **about},
                "x_partition": record.get("category"),
            }
            rows.append(row)
        return rows

    return job.rows(read_json(table, list), views)


def _mask_of_syncd(file: Path) -> bytes | None:
    """The mask as a PNG of 0 and 255 in the image's size; None without one; ValueError for a missing image."""
    mask_file = file.parent / "masks" / f"{file.stem}.jpg"
    if not file.is_file():
        raise ValueError(f"{file} is missing; unpack all archives of the dataset")
    if not mask_file.is_file():
        return None
    mask = open_image(mask_file).convert("L").point(lambda value: 255 * (value > 0))
    return png(mask.resize(open_image(file).size, Image.Resampling.NEAREST))


def uned(job: ImportJob) -> Iterator[Row]:
    """UnED's splits (Ypsilantis et al., ICCV 2023): a row for each training image.

        data/info_files/met/train.json     a list of {"path": "met/MET/...", "class_id": 17, ...}
        data/images/met/MET/...            the images of each dataset, from its own authors

    An image of several classes has no identity. From github nikosips/Universal-Image-Embeddings.
    """
    root = job.folder()
    entries = []
    for name in UNED:
        entries += [(name, entry) for entry in read_json(root / "info_files" / name / "train.json", list)]

    def image(item: tuple[str, Row]) -> list[Row]:
        name, entry = item
        dataset, domain = UNED[name]
        try:
            path, classes = str(entry["path"]), as_list(entry["class_id"])
        except (KeyError, TypeError) as error:
            raise ManifestError(f'{name}/train.json: {str(entry)[:60]} must have a "path" and a "class_id"') from error
        row: Row = {
            "id": f"train/{path}",
            "path": locate(path, root / "images", name, inside=True),
            "dataset": dataset,
            "split": "train",
            "domain": domain,
        }
        if len(classes) == 1:
            label = name_of(classes[0], f"{name}/train.json: {path}")
            row["identity"] = f"{name}/{label}"
        return [row]

    return job.rows(entries, image)


# Any table


def table(job: ImportJob) -> Iterator[Row]:
    """A row for each row of any table with a column of images and one of identities.

    Columns with the name of a manifest column are used directly, and `image` is used as `path`. `--map` names others,
    as in `--map identity=label --map path=photo`, and columns to keep as your own (`--map shop=seller`). Other columns
    of short texts and numbers go to the parameters.

    If the user names the dataset (`--name`), all rows get this name, and the table's column `dataset` goes to the
    column `x_subset`; tables that join several sets (WildlifeReID-10k) name the sets there.
    """
    source = job.open()
    refuse_boxes(source.columns, source.name)
    image = "image" if "image" in source.columns and "path" not in source.columns else "path"
    source.need(*job.columns, image, "identity")
    kept_columns = {*COLUMNS, "x_subset", *job.columns, *(name for name in source.columns if name.startswith("x_"))}
    kept_columns -= {image, "parameters"}

    def row(record: Record) -> list[Row]:
        values = {name: value for name, value in record.values.items() if value is not None}
        if job.name and "dataset" in values and "dataset" not in job.columns:
            values.setdefault("x_subset", values.pop("dataset"))
        columns = {name: value for name, value in values.items() if name in kept_columns}
        for name in ("oracle", "label", "seed"):  # a column `label` that nobody mapped may hold names
            if name in columns and name not in job.columns and not _is_number(columns[name]):
                del columns[name]
        split = record.shard.split
        defaults: Row = {
            "id": f"{split or 'all'}/{record.number:06d}",
            "split": split,
            "path": record[image],
            "parameters": record.about(image, *columns),
        }
        return [defaults | columns]

    return job.rows(source, row)


def _is_number(value: object) -> bool:
    try:
        number_of(str(value))
    except ValueError:
        return False
    return True


_MTG = ("image_{}_original", "image_{}_inpainted", "image_{}_object_mask", "image_{}_part_mask")
SETS: dict[str, tuple[tuple[str, ...], Callable[[ImportJob, Record], list[Row]]]] = {
    "nights": (("ref_path", "left_path", "right_path", "left_vote"), _nights),
    "subjects2k": (("reference_image", "test_image", "binary_label"), _subjects2k),
    "mtg": (tuple(name.format(view) for view in (1, 2) for name in _MTG), _mtg),
}


def rows(job: ImportJob) -> Iterator[Row]:
    """The rows of a set of `SETS`."""
    columns, rows_of = SETS[job.kind]
    return job.rows(job.open(*columns), partial(rows_of, job))
