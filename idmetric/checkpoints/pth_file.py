"""Read the tensors of a `.pth` file of `torch.save`, within bounds that its size sets.

`weights_only` keeps a pickle from running code, but not from taking memory: its zip may be deflated (a megabyte becomes
a gigabyte), its pickle may ask for a `bytearray` of any length, and its tensors may claim more than is stored. What
`torch.save` writes does none of these.
"""

from __future__ import annotations

import os
import pickletools
import zipfile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

_PICKLE = 2**26  # bytes of the table of names; that of a model of 1,000 tensors has 0.1 MB
_STORAGES = {f"torch {kind}Storage" for kind in (
    "BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short",
)}  # fmt: skip
_KNOWN = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", *_STORAGES}


def is_pickled(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as `torch.save` begins one, whatever its name."""
    try:
        with Path(path).open("rb") as file:
            return file.read(4).startswith((b"PK\3\4", b"\x80\2"))  # the second by torch before 1.6
    except OSError:
        return False  # whoever reads it names the reason


def load_pickled_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(state_dict, path)` wrote (torch 1.6 or later), on the CPU.

    No code of the file is run. Memory is taken for about the size of the file.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, holds anything but a table of tensors, or would take more memory than its size.
    """
    size = os.path.getsize(path)
    with Path(path).open("rb") as file:
        _check_end(file, size)
        try:
            _check_members(file, size)
        except (OSError, ValueError):
            raise
        except Exception as error:  # damaged zip files and pickles end in errors of many kinds
            raise ValueError(f"it is damaged: {error}") from error
        file.seek(0)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(f"torch cannot read it: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) and isinstance(k, str) for k, v in found.items()):
        raise ValueError("it does not hold a table of tensors")
    claimed = sum(value.numel() * value.element_size() for value in found.values())
    if claimed > size:
        raise ValueError(f"its tensors claim {claimed} bytes, more than the {size} of the file")
    return dict(found)


def _check_end(file: BinaryIO, size: int) -> None:
    """See that the directory lies where `torch.save` puts it: other readers of zip may else find another one."""
    file.seek(max(0, size - 98))
    tail = file.read().rjust(98, b"\0")
    end, locator, large = tail[76:], tail[56:76], tail[:56]
    if end[:4] != b"PK\5\6":
        raise ValueError(
            "it is not a zip file of torch.save; one of a torch before 1.6 is converted by "
            "torch.save(torch.load(path, weights_only=True), path)"
        )

    def number(data: bytes, start: int, length: int) -> int:
        return int.from_bytes(data[start : start + length], "little")

    length, start, stop = number(end, 12, 4), number(end, 16, 4), size - 22
    if locator[:4] == b"PK\6\7":
        stop = size - 98
        if large[:4] != b"PK\6\6" or number(locator, 8, 8) != stop:
            raise ValueError("it is damaged: the end of its zip directory is not where it says")
        length, start = number(large, 40, 8), number(large, 48, 8)
    if start + length != stop:
        raise ValueError("it is damaged: its zip directory is not where it says")


def _check_members(file: BinaryIO, size: int) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = {member.orig_filename.lower() for member in members}
        if len(names) < len(members):
            raise ValueError("it is damaged: two of its zip members have one name")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its zip members are compressed, which torch.save never does: its memory has no bound")
        if sum(member.file_size for member in members) > size:
            raise ValueError("its zip members are larger than the file")

        tables = [member for member in members if member.orig_filename.lower().endswith("data.pkl")]
        for member in tables:
            if member.file_size > _PICKLE:
                raise ValueError(f"its table of names has {member.file_size} bytes, more than {_PICKLE}")
            _check_pickle(archive.read(member))


def _check_pickle(data: bytes) -> None:
    for operation, value, _ in pickletools.genops(data):
        if operation.name in ("STACK_GLOBAL", "INST") or (operation.name == "GLOBAL" and value not in _KNOWN):
            raise ValueError(f"its pickle asks for {value or operation.name!r}: only tables of tensors are read")
