"""A subject: an identity by the embeddings of its reference photos, kept in one file.

rex = embed_subject(metric, "refs/rex/", name="rex", word="dog")
rex.save("rex.subject")
score(metric, "rex.subject", "generated/")
match(metric, ["rex.subject"], "generated.png")
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.metric import paths
from idmetric.metric.distance import needs_patches
from idmetric.metric.embedding import Embedding, same_model
from idmetric.metric.errors import CheckpointError, RequestError
from idmetric.metric.files import StrPath, parse_json, refuse_irregular, replacing, save_sealed, seal_problem

if TYPE_CHECKING:
    from torch import Tensor


_FORMAT = "idmetric-subject/1"
_AGAIN = "make it again from its photos, by embed_subject(...).save(...)"


@dataclass(frozen=True, eq=False)
class Subject:
    """An identity, as one model sees its reference photos.

    Attributes:
        name: of the subject, such as "rex". word: what it is, such as "dog", or "".
        embedding: of the K references.
        references: their names, K, each another one.
        thumbnails: the references at 96 x 96 pixels, (K, 96, 96, 3), in which copies of them are found.
        threshold: the largest distance at which an image counts as this subject; None: see `own_limit`.
        signature: model, revision, distance, resolution, dtype and version that made the embedding.
    """

    name: str
    embedding: Embedding
    references: tuple[str, ...]
    thumbnails: NDArray[np.uint8]
    word: str = ""
    threshold: float | None = None
    signature: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.embedding)

    def check(self, model_id: str, distance: str) -> None:
        """Refuse the embeddings of another model, or without the patches that a distance compares: RequestError.

        Args:
            model_id: model, revision and resolution, see `Embedder.model_id`.
        """
        if not same_model(self.embedding.model, model_id):
            raise RequestError(
                f"the subject {self.name} was made by {self.embedding.model}, this model is {model_id}: make it again "
                "from its photos"
            )
        if needs_patches(distance) and self.embedding.patches is None:
            raise RequestError(
                f"the subject {self.name} was made for the distance {self.signature.get('distance', 'cls')!r} and has "
                f"no patches, which {distance!r} compares: make it again with distance={distance!r}"
            )

    # Files

    def save(self, path: StrPath) -> None:
        """Write a .subject file (safetensors) with a digest of its bytes, atomically.

        Raises:
            RequestError: for embeddings without the name of their model. OutputError: if the file cannot be written.
        """
        import torch

        if not self.embedding.model:
            raise RequestError(f"the embeddings of {self.name} do not name their model: set Embedding.model")

        tensors: dict[str, Any] = {"cls": self.embedding.cls, "thumbnails": torch.from_numpy(self.thumbnails)}
        if self.embedding.patches is not None:
            tensors["patches"] = self.embedding.patches
        if self.embedding.weights is not None:
            tensors["weights"] = self.embedding.weights
        grid = self.embedding.grid
        header = {
            "format": _FORMAT,
            "model": self.embedding.model,
            "grid": "" if grid is None else f"{grid[0]}x{grid[1]}",
            "name": self.name,
            "word": self.word,
            "threshold": json.dumps(self.threshold),
            "references": json.dumps(self.references),
            "signature": json.dumps(dict(self.signature)),
        }
        copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with replacing(Path(path)) as temporary:
            save_sealed(copies, temporary, header)

    @classmethod
    def load(cls, path: StrPath) -> Subject:
        """Read a .subject file.

        Raises:
            RequestError: for a file that is missing, damaged or no subject; the message names it.
        """
        from safetensors import SafetensorError, safe_open

        from idmetric.metric.checkpoints.weights import check_finite

        shown = os.fspath(path)
        problem = ""
        try:
            refuse_irregular(Path(path))
            with safe_open(shown, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            if header.get("format") == _FORMAT:
                problem = seal_problem(Path(path))
                if not problem:
                    check_finite(tensors, path)
                    return cls._of_file(tensors, header)
        except OSError as error:
            raise RequestError(f"cannot read the subject {shown}: {error.strerror or error}") from error
        except (SafetensorError, CheckpointError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(f"{shown} is a damaged subject: {reason}: {_AGAIN}") from error
        if problem:
            raise RequestError(f"{shown} is a damaged subject: {problem}: {_AGAIN}")
        raise RequestError(f"{shown} is not a subject: Subject.save writes them")

    @classmethod
    def _of_file(cls, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Subject:
        """A subject of the tensors and the metadata in a file; errors of Python for damaged ones."""
        subject = cls(
            name=header["name"],
            embedding=Embedding.of(tensors, header),
            references=tuple(map(str, parse_json(header["references"]))),
            thumbnails=tensors["thumbnails"].numpy(),
            word=header["word"],
            threshold=parse_json(header["threshold"]),
            signature=dict(parse_json(header["signature"])),
        )
        count = len(subject)
        if not subject.name or not count or not subject.embedding.cls.is_floating_point():
            raise ValueError("it has no name, or no embeddings")
        if not subject.embedding.model:
            raise ValueError("it does not name the model of its embeddings")
        if not bool(subject.embedding.cls.any(1).all()):
            raise ValueError("one of its embeddings is zero")
        if len(subject.references) != count or subject.thumbnails.shape != (count, 96, 96, 3):
            raise ValueError("its references, thumbnails and embeddings differ in number or size")
        if subject.thumbnails.dtype != np.uint8:
            raise ValueError(f"its thumbnails are {subject.thumbnails.dtype}, not uint8")
        if subject.threshold is not None and not math.isfinite(subject.threshold):
            raise ValueError(f"its threshold is {subject.threshold}")
        return subject


def subject_among(references: Any) -> Subject | None:
    """The subject that stands for references, read if it is a file; None for photos.

    Raises:
        RequestError: for a damaged file, or a subject among other references.
    """
    sources = references if isinstance(references, list | tuple) else [references]
    subjects = [source for source in sources if isinstance(source, Subject) or paths.is_subject_file(source)]
    if not subjects:
        return None
    if len(sources) > 1:
        raise RequestError("a subject stands for all of its references: give one subject, or photos")
    subject = subjects[0]
    return subject if isinstance(subject, Subject) else Subject.load(subject)
