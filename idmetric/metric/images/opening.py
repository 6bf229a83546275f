"""Image files opened and decoded by Pillow, within limits, upright."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

from PIL import ExifTags, Image, ImageFile, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from idmetric.metric.files import StrPath
from idmetric.metric.files.json_file import read_bytes
from idmetric.metric.images.arrays import image_of_array
from idmetric.metric.images.kinds import (
    CUT,
    MAX_PIXELS,
    MAX_SIDE,
    STORED,
    TOO_LARGE,
    ImageLike,
    ImageReadError,
    MultiFrameWarning,
    describe,
    is_array,
    is_stored_image,
    naming,
)
from idmetric.metric.images.paths import (
    ABSENT,
    RAW_ENDINGS,
    VIDEO_ENDINGS,
    is_address,
    is_subject_file,
    names_several,
)

# Pillow's names of the formats that are decoded, whatever a file is called. Left out are formats that Pillow decodes
# pixel by pixel in Python (FITS, QOI, SGI, BLP, ...: a file of kilobytes can take minutes) or has another program draw
# (EPS, WMF), and formats that hardly anybody keeps photos in. HEIF needs its plugin, pillow-heif.
IMAGE_FORMATS = (
    "PNG",
    "JPEG",
    "MPO",
    "WEBP",
    "TIFF",
    "GIF",
    "BMP",
    "DIB",
    "PPM",
    "JPEG2000",
    "AVIF",
    "HEIF",
    "TGA",
    "ICO",
    "PSD",
)

_CLOSED = "this PIL image is closed: use it inside its with block, or open the file again"
_EMPTY = "the file is empty: fetch or write it again"
_PNG = b"\x89PNG\r\n\x1a\n"
_SETTING = threading.Lock()  # of the two below
_refusing = 0  # how many blocks of `_refusing_damage` are running
_reads_on = False  # Pillow's setting outside of them
_LOCKS = [threading.Lock() for _ in range(64)]  # of PIL images in memory, chosen by their addresses


class Named(io.BytesIO):
    """A file in memory that messages call by its name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


def read_file(path: StrPath) -> Named:
    """All bytes of a file; ImageReadError as for `open_image`, or if it has more than `MOST` bytes."""
    name = describe(path)
    try:
        return Named(read_bytes(checked_path(path, name)), name)
    except OSError as error:
        _refuse(error, name)


def open_image(source: ImageLike, upright: bool = True) -> Image.Image:
    """The image decoded, upright and in its own mode: the caller's own object where nothing had to be done to it.

    Args:
        source: as for `read_image`.
        upright: whether to turn it by its EXIF orientation.
    """
    name = describe(source)
    if is_stored_image(source):
        source = _of_storage(source, name)
    if is_array(source):
        with naming(source):
            return image_of_array(source)
    if isinstance(source, Image.Image):
        # Pillow decodes late, and several threads may hold one image, such as one that stands in a list twice
        with _LOCKS[id(source) // 16 % len(_LOCKS)]:
            is_decoded = not getattr(source, "tile", None)
            if not is_decoded and source.format not in (None, *IMAGE_FORMATS):
                raise ImageReadError(name, f"{source.format} files are not read: save it as PNG")
            if not is_decoded and getattr(source, "fp", None) is None:
                raise ImageReadError(name, _CLOSED)
            with _refusing_damage():
                return _decode(source, name, upright)

    file = _file(source, name)
    try:
        with _refusing_damage(), open_file(file) as image:
            return _decode(image, name, upright, is_file=True)
    except (ImageReadError, MultiFrameWarning):  # a warning where filters make it an error
        raise
    except Exception as error:  # plugins raise many kinds of error on damaged headers
        if name.lower().endswith(VIDEO_ENDINGS):
            reason = "it is a video: clips are compared by `idmetric match`, with images as references"
            raise ImageReadError(name, reason) from error
        _refuse(error, name)


def open_file(file: BinaryIO | StrPath) -> Image.Image:
    """Pillow's `Image.open` for the formats of `IMAGE_FORMATS` alone; it reads only the file's head."""
    Image.init()  # once a process; HEIF is there if its plugin was registered
    formats = [name for name in IMAGE_FORMATS if name in Image.OPEN]
    try:
        return Image.open(file, formats=formats)
    except ValueError:
        shorter = _without_long_texts(file)
        if shorter is None:
            raise
        return Image.open(shorter, formats=formats)


@contextmanager
def _refusing_damage() -> Iterator[None]:
    """Have Pillow raise on damaged files in this block, also where another library had it read on.

    Several threads may be in such blocks; the last one that leaves restores the setting.
    """
    global _refusing, _reads_on
    with _SETTING:
        if not _refusing:
            _reads_on = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _refusing += 1
    try:
        yield
    finally:
        with _SETTING:
            _refusing -= 1
            if not _refusing:
                ImageFile.LOAD_TRUNCATED_IMAGES = _reads_on


def _without_long_texts(file: BinaryIO | StrPath) -> io.BytesIO | None:
    """A PNG without the compressed texts that Pillow finds too long to open it; None if there are none."""
    if isinstance(file, str | os.PathLike):
        data = read_bytes(file)
    else:
        file.seek(0)
        data = file.read()
    if not data.startswith(_PNG):
        return None

    chunks = [_PNG]
    start = len(_PNG)
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")  # length, type, content, checksum
        if not _is_long_text(data[start + 4 : start + 8], data[start + 8 : end - 4]):
            chunks.append(data[start:end])
        start = end
    shorter = b"".join(chunks)
    return io.BytesIO(shorter) if len(shorter) < len(data) else None


def _is_long_text(kind: bytes, content: bytes) -> bool:
    """Whether a PNG's chunk is a compressed text of more than `PngImagePlugin.MAX_TEXT_CHUNK` bytes."""
    _, _, rest = content.partition(b"\0")
    if kind == b"zTXt":
        compressed = rest[1:]
    elif kind == b"iTXt" and rest.startswith(b"\1"):
        compressed = rest[2:].split(b"\0", 2)[-1]  # after the language and the translated keyword
    else:
        return False
    try:
        return len(zlib.decompressobj().decompress(compressed, PngImagePlugin.MAX_TEXT_CHUNK + 1)) > (
            PngImagePlugin.MAX_TEXT_CHUNK
        )
    except zlib.error:
        return False


def is_animated(image: Image.Image) -> bool:
    """Whether there are several frames or pages, without counting them, which takes minutes for some files.

    The preview in a phone's MPO photo and the layers of a PSD do not count.
    """
    return image.format not in ("MPO", "PSD") and bool(getattr(image, "is_animated", False))


def _of_storage(image: Mapping[str, Any], name: str) -> Named | StrPath:
    """The file, in memory if it has bytes, of an image that `datasets` stores."""
    data: bytes | None = image.get("bytes")
    path: StrPath | None = image.get("path")
    if data is not None:
        return Named(data, name)
    if path is None:
        raise ImageReadError(name, "it has neither bytes nor a path: leave it out")
    return path


def _file(source: Any, name: str) -> BinaryIO | str:
    """The source as Pillow opens it: an existing file's path, or bytes in memory."""
    if isinstance(source, str | os.PathLike):
        return checked_path(source, name)

    if isinstance(source, bytes | bytearray | memoryview):
        data: Any = bytes(source)
    elif isinstance(source, Named):  # may be read again
        data = source.getvalue()
    elif hasattr(source, "read"):
        try:
            data = source.read()
        except Exception as error:  # whatever the object raises: closed, text that is not UTF-8, connection lost
            raise ImageReadError(name, f"reading failed ({error}): give an open file in mode 'rb'") from error
    else:
        raise TypeError(f"{type(source).__name__} is not an image: give a path, bytes, PIL image, array or tensor")
    if isinstance(data, str):
        raise ImageReadError(name, "it gives text: open the file in mode 'rb'")
    if not data:
        raise ImageReadError(name, "it is empty: fetch or write it again; a file object already read needs seek(0)")
    return io.BytesIO(data)


def checked_path(source: StrPath, name: str) -> str:
    """The path of a file that can be opened."""
    if isinstance(source, str) and is_address(source):
        raise ImageReadError(name, "addresses (URLs) are not fetched: download it and give the file's path")
    try:
        path = os.fspath(source)
        status = os.stat(path)
    except PermissionError as error:
        _refuse(error, name)
    except (OSError, ValueError) as error:
        raise ImageReadError(name, ABSENT) from error

    if stat.S_ISDIR(status.st_mode):
        raise ImageReadError(name, "it is a folder: give the image files in it")
    if not stat.S_ISREG(status.st_mode):  # opening one may wait for ever
        raise ImageReadError(name, "it is a pipe or a device: give a file with its content")
    if status.st_size == 0:
        raise ImageReadError(name, _EMPTY)
    return path


def check_paths(*sources: Any) -> None:
    """Refuse the first path among images, and lists of them, that does not exist, before any work: ImageReadError."""
    for source in sources:
        if isinstance(source, list | tuple):
            check_paths(*source)
        elif isinstance(source, str | os.PathLike) and not (os.path.exists(source) or names_several(source)):
            checked_path(source, describe(source))


def _decode(image: Image.Image, name: str, upright: bool, *, is_file: bool = False) -> Image.Image:
    """See `open_image`; `is_file`: nobody else holds the image."""
    _check_size(image, name)

    # What decoding forgets
    key_bits = _key_bits(image)
    has_16_bits = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    is_cut = has_16_bits and not image.mode.startswith("I")
    has_more_frames = False
    stored = None
    try:
        if image.format == "TIFF":
            stored = _orientation(image)  # Pillow turns TIFFs when it loads them, and removes the tag
            _check_tiff(image, name)
        if image.tell() == 0:
            has_more_frames = is_animated(image)
        image.load()
    except ImageReadError:
        raise
    except Exception as error:  # a truncated file raises OSError, SyntaxError, struct.error, ... by format
        _refuse(error, name)
    if has_more_frames:
        message = f"{name} has several frames: only the first is used (open it with Pillow and seek for another)"
        warnings.warn(message, MultiFrameWarning, stacklevel=5)
    if not upright:
        return image

    turned = image
    try:
        stored = stored or _orientation(image)
        if is_file and stored in (None, 1):
            turned = image._new(image.im)  # as `copy`, with the same pixels
        elif type(image) is not Image.Image or stored is not None:
            turned = ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block must not lose a good image
        warnings.warn(f"{name} has an unreadable EXIF block: its orientation is not applied", stacklevel=5)
        turned = image.copy()

    # Notes for whoever reads it
    key = turned.info.get("transparency")
    if key_bits is not None and isinstance(key, int):
        turned.info["transparency"] = min(255, key * 255 // (2**key_bits - 1))
    if stored is not None:
        turned.info[STORED] = stored
    if is_cut:
        turned.info[CUT] = True
    return turned


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    longer = max(width, height)
    if width * height < 1:
        raise ImageReadError(name, f"it has no pixels ({width} x {height})")
    if width * height > MAX_PIXELS:
        reason = f"{width} x {height} pixels are more than the {MAX_PIXELS} allowed: make it smaller"
        raise ImageReadError(name, reason)
    if longer > MAX_SIDE:
        reason = f"a side of {longer} pixels is longer than the {MAX_SIDE} allowed: make it smaller"
        raise ImageReadError(name, reason)


_NEW_SUBFILE_TYPE = 254
_DNG_VERSION = 50706


def _check_tiff(image: Image.Image, name: str) -> None:
    """Refuse raw files, thumbnails, and the TIFFs that Pillow (13.0) decodes to wrong pixels without an error."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):  # a copy in memory has no tags
        return
    tags = image.tag_v2
    is_thumbnail = bool(tags.get(_NEW_SUBFILE_TYPE, 0) & 1) and image.tell() == 0
    if is_thumbnail or _DNG_VERSION in tags or name.lower().endswith(RAW_ENDINGS):
        reason = "it is a camera raw file, or begins with a thumbnail: convert it to PNG or JPEG"
        raise ImageReadError(name, reason)

    bits = max(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
    is_signed = 2 in tags.get(TiffImagePlugin.SAMPLEFORMAT, (1,))
    is_white_zero = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0) == 0
    is_planar = tags.get(TiffImagePlugin.PLANAR_CONFIGURATION, 1) == 2
    is_compressed = image.info.get("compression") != "raw"

    if is_white_zero and bits > 8:
        kind = f"{bits}-bit values where 0 is white"
    elif is_signed and bits == 8:
        kind = "signed 8-bit values"
    elif is_planar and (image.mode in ("LA", "La", "PA") or (bits > 8 and not is_compressed)):
        kind = f"{bits}-bit channels in separate planes"
    elif image.mode in ("I", "F") and tags.prefix == TiffImagePlugin.MM and is_compressed:
        kind = f"compressed big-endian {bits}-bit values"
    elif image.mode == "P" and max(tags[TiffImagePlugin.COLORMAP]) < 256:
        kind = "a palette of 8 bits"
    else:
        return
    raise ImageReadError(
        name,
        f"this TIFF holds {kind}, which Pillow would read as another picture: save it as PNG with another program, "
        "such as ImageMagick (magick a.tif a.png)",
    )


def _orientation(image: Image.Image) -> int | None:
    """EXIF's orientation, 1 to 8; None without one."""
    value = image.getexif().get(ExifTags.Base.Orientation)
    if value in range(1, 9):
        return value
    return None


def _key_bits(image: Image.Image) -> int | None:
    """Bits of a gray PNG's transparent value, where Pillow brings the pixels to 8 bits but not that value."""
    tiles = getattr(image, "tile", None)
    if image.format != "PNG" or not tiles:
        return None
    raw_mode = str(tiles[0][3])
    return {"L;2": 2, "L;4": 4}.get(raw_mode)


def _refuse(error: Exception, name: str) -> NoReturn:
    """Raise an ImageReadError that explains an error; if files cannot be opened any more, the error itself."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    raise ImageReadError(name, _explain(error, name)) from error


def _explain(error: Exception, name: str) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"too many pixels ({error}): make it smaller"
    if isinstance(error, MemoryError):
        return TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        if is_subject_file(name):
            return "it holds a subject, not an image: `idmetric.score` and `match` take it instead of references"
        advice = "HEIC needs pip install pillow-heif and, in Python, pillow_heif.register_heif_opener()"
        return (
            f"it is not an image of a known format, or its header is damaged: save it again as PNG or JPEG ({advice})"
        )
    if isinstance(error, PermissionError):
        return "there is no permission to read it: change its mode or owner (chmod, chown), or its folder's"
    if "closed image" in str(error):
        return _CLOSED
    return f"it is damaged or cut short ({error or type(error).__name__}): fetch or write it again"
