"""Any image as pixels: opened, turned upright, in colour or grey, cut and resized. Training and use go through the same
function, so that a photo is treated as the training images were.

Nothing here knows labels or models. What is wrong with an image is an :class:`InputError` that names it.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from regard.schema import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 64_000_000  # of one image: a small file can claim more than memory holds
# What a file of an image is called. A table may name any other.
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif")
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")  # and none that is a program

Source = Any
"""Where an image is: a path, the bytes of a file, an image of pillow, or an array (H, W), (H, W, 1), (H, W, 3)."""


class Picture(NamedTuple):
    """An image that has not been opened: what it is called, and where it is."""

    name: str
    source: Source

    @property
    def size(self) -> int:
        """Bytes to read."""
        if isinstance(self.source, Path):
            return self.source.stat().st_size
        return len(self.source) if isinstance(self.source, bytes) else self.source.nbytes

    @property
    def key(self) -> str:
        """What is the same for the same image, wherever it is named; of an array, its name."""
        if isinstance(self.source, bytes):
            return self.sha256()
        return str(self.source) if isinstance(self.source, Path) else self.name

    def sha256(self) -> str:
        """Of its bytes, as they lie in its file; of an array, of its numbers."""
        data = self.source.read_bytes() if isinstance(self.source, Path) else bytes(self.source)
        return hashlib.sha256(data).hexdigest()


def claimed(source: bytes) -> int:
    """How many pixels a file says that it has; 0 where that cannot be read."""
    try:
        with _pillow().open(io.BytesIO(source), formats=FORMATS) as image:
            return image.width * image.height
    except Exception:  # of pillow's many: the image is refused when it is read
        return 0


def read_pixels(
    source: Source,
    size: int,
    channels: int,
    name: str | None = None,
    *,
    resample: str = "bicubic",
    squash: bool = False,
    kept: float = 1.0,
) -> UInt8[NDArray, "H W C"]:
    """An image as ``size`` x ``size`` pixels: the short side is made as long by pillow's bicubic filter, which looks at
    all pixels that go into one (antialiased), and the middle of the long side is cut out.

    That is how ours are trained. Models of others may have another filter, the whole of the image squashed to a square,
    or an edge left out: ``kept`` is the share of a side that is not.

    >>> read_pixels(np.full((5, 7), 3, np.uint8), size=2, channels=1).tolist()
    [[[3], [3]], [[3], [3]]]
    >>> read_pixels(b"a dog", size=2, channels=3, name="dog.jpg")
    Traceback (most recent call last):
    regard.schema.InputError: dog.jpg: is not an image, or of a kind that pillow cannot read
    """
    name = name or (str(source) if isinstance(source, str | Path) else "image")
    with _faults(name):
        image = _upright(_opened(source, name, size), "L" if channels == 1 else "RGB", name)
        if image.size != (size, size) or kept != 1:
            width, height = (kept * side for side in (image.size if squash else [min(image.size)] * 2))
            left, top = (image.width - width) / 2, (image.height - height) / 2
            by = _pillow().Resampling[resample.upper()]
            image = image.resize((size, size), by, box=(left, top, left + width, top + height))
        return np.array(image).reshape(size, size, channels)


@cache
def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need pillow; install it: pip install 'regard[images]'") from None
    # It warns, from a limit on that is above ours; then ours speaks.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image


def _opened(source: Source, name: str, size: int) -> Image:
    """The image, its header read and its pixels few enough; of an animated one the first frame."""
    pillow = _pillow()
    if isinstance(source, np.ndarray):
        return _of_array(source, name)
    if isinstance(source, pillow.Image):
        _check_pixels(name, *source.size)
        return source
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.is_file():
            raise InputError(f"{name}: {'is no file' if path.exists() else 'no such image'}")
        source = path.read_bytes()
    if not isinstance(source, bytes | bytearray | memoryview):
        raise InputError(f"{name} ({type(source).__name__}) must be a path, bytes, an image of pillow or an array")
    image = pillow.open(io.BytesIO(source), formats=FORMATS)
    _check_pixels(name, image.width, image.height)
    # A JPEG that is much too large is decoded at a half, quarter or eighth of its size, never less than twice ours.
    image.draft(None, (2 * size, 2 * size))
    image.load()
    return image


def _check_pixels(name: str, width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise InputError(
            f"{name}: has {width:,} x {height:,} pixels, and more than {MOST_PIXELS:,} are refused; make it smaller"
        )


def _of_array(pixels: NDArray, name: str) -> Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise InputError(
            f"{name}: an array of shape {pixels.shape} and type {pixels.dtype} must be uint8, (H, W) or (H, W, 3)"
        )
    if not pixels.size:
        raise InputError(f"{name}: an array of shape {pixels.shape} has no pixels")
    return _pillow().fromarray(np.ascontiguousarray(pixels))


def _upright(image: Image, mode: str, name: str) -> Image:
    """As its EXIF says it is held, over white where it is transparent, with 8 bits a colour."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bits(image, name)
    if image.has_transparency_data:
        own = image.convert("RGBA")
        white = _pillow().new("RGBA", own.size, "white")
        image = _pillow().alpha_composite(white, own)
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image, name: str) -> Image:
    """16 bits (which pillow may hold in 32) to 8; pillow itself would cut all above 255 off."""
    if image.mode == "F":
        raise InputError(f"{name}: has pixels that are fractions; give whole numbers of 8 or 16 bits")
    values = np.asarray(image, np.float64)
    wide = image.mode != "I" or values.max() > 255
    return _pillow().fromarray((values / 257 if wide else values).round().clip(0, 255).astype(np.uint8))


@contextmanager
def _faults(name: str) -> Iterator[None]:
    """What goes wrong with an image, as one line that names it. Decoders raise nearly anything."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        from PIL import Image, UnidentifiedImageError

        if isinstance(error, UnidentifiedImageError):
            raise InputError(f"{name}: is not an image, or of a kind that pillow cannot read") from None
        if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
            raise InputError(
                f"{name}: claims far more than the {MOST_PIXELS:,} pixels that are read; make it smaller"
            ) from None
        told = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: is damaged or cut short ({told}); fetch the image again") from None
