"""Columns of a manifest: what a row holds, and the Arrow types that store it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

ROLES = ("real", "context-edit", "identity-edit", "distractor", "part-edit")
TEXT_SLOTS = ("query", "positive", "negative", "candidate")  # of rows that may be a text without an image
SLOTS = ("anchor", "positive", "negative", "query", "candidate", "left", "right")


@dataclass(frozen=True)
class Row:
    """One image of a manifest, or one text of a multimodal search. Empty values are None.

    Attributes:
        identity: name of the identity, equal exactly for images of the same subject in all datasets of the manifest;
            empty if it is unknown or the image shows no subject (a background).
        path, image_bytes: the image, either as a file, relative to the manifest's folder, or as its encoded bytes.
            Rows with a text in one of the slots `TEXT_SLOTS` may lack it: a caption as query, an answer as target.
        id: unique name of the row; by default made of group, slot and path (or a hash of the bytes).
        dataset: origin of the image.
        split: such as train, val, test.
        domain: such as animals, products.
        category: such as dog, mug.
        mask, mask_bytes: mask of the object, see `idmetric.images.masks`.
        part_mask, part_mask_bytes: mask of its edited part.
        role: one of `ROLES`: real (a photo or a rendering), context-edit (the parent's identity in another context),
            identity-edit and distractor (another identity in the parent's context), part-edit (a part is changed).
        background: id of the background.
        engine: generator of the image.
        oracle: 1 - |part| / |object| in 0..1, the share of the object that an edit kept (NearID, section 3.4).
        text: instruction, prompt or caption.
        label: a human or model judgment of this row within its group; the dataset defines its meaning.
        group, slot: rows with one group belong together (a pair, a triplet, a query with candidates); the slot is the
            row's place in the group, one of `SLOTS`.
        parent: id of the row that this one was made from.
        seed, parameters: everything else that made the image.
    """

    identity: str | None
    path: str | None = None
    image_bytes: bytes | None = None
    id: str = ""
    dataset: str | None = None
    split: str | None = None
    domain: str | None = None
    category: str | None = None
    mask: str | None = None
    mask_bytes: bytes | None = None
    part_mask: str | None = None
    part_mask_bytes: bytes | None = None
    role: str = "real"
    background: str | None = None
    engine: str | None = None
    oracle: float | None = None
    text: str | None = None
    label: float | None = None
    group: str | None = None
    slot: str | None = None
    parent: str | None = None
    seed: int | None = None
    parameters: Mapping[str, Any] | None = None


TYPES = {
    **{f.name: pa.string() for f in fields(Row)},
    "image_bytes": pa.large_binary(), "mask_bytes": pa.large_binary(), "part_mask_bytes": pa.large_binary(),
    "oracle": pa.float64(), "label": pa.float64(), "seed": pa.int64(),
}  # fmt: skip
SCHEMA = pa.schema(TYPES.items(), metadata={"idmetric.manifest": "1"})
COLUMNS = tuple(SCHEMA.names)
PATHS = ("path", "mask", "part_mask")
