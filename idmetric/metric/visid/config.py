"""Settings of VisIDEmbed: how images and words become tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from idmetric.metric.checkpoints.config import check_fields

# the paper's four meta-tasks, in our own words
TASKS = {
    "recognition": "Find other images of the same object as in this image.",
    "reidentification": "Find other photos of the same individual as in this photo.",
    "grounding": "Find the images in which the subject of this image appears.",
    "editing": "Find the image that this edit of the image leads to:",
}
CANDIDATE = "Represent the image"  # the example the paper gives

IMAGE = "<|image_pad|>"
STEP = 28  # one token stands for 28 x 28 pixels, or 2 x 2 patches
MOST_RATIO = 200  # of an image's longer side to its shorter one, in Qwen2-VL's processor
_MOST_PIXELS = 2**25  # 42,799 tokens; Qwen2.5-VL's processor takes 16,384
# what stands before, with an image after that, and at the end
STYLES = {
    "vlm2vec": ("", IMAGE, ""),
    "chat": (
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n",
        f"<|vision_start|>{IMAGE}<|vision_end|>",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
}


@dataclass(frozen=True)
class VisIDConfig:
    """How images and words become tokens; saved in visid.json.

    Args:
        prompt_style: "vlm2vec": image, a space, the words, nothing else; "chat": Qwen's chat template, with the
            embedding read after the assistant's header.
        positions: "vision": an image's tokens get rows and columns as rotary positions; "sequential": they are counted
            like words; "auto": "sequential" for vlm2vec, "vision" for chat. It matters because transformers 4.52,
            which VLM2Vec pins, finds images by the token <|vision_start|>, which the vlm2vec style lacks, and so
            counted them like words, whereas transformers 5 gives the same prompt rows and columns.
        instruction: the default instruction of `embed` for images.
        text_instruction: the same for texts alone.
        min_pixels, max_pixels: an image is scaled, keeping its shape, to lie between; sides are multiples of 28.
        max_length: tokens, image included; longer texts are cut, with a warning.
        separator: between image and words; default a space for vlm2vec, nothing for chat. Words that begin with a line
            break, as MMEB's do, follow the image without it.
        joiner: between instruction and text.
        suffix: after the words, where there are any. VLM2Vec's evaluation ends queries with a line break.
        system: the system's words of the chat template.
        pooling: "last": the hidden state at the last token; "mean": the mean over all tokens.
    """

    prompt_style: Literal["vlm2vec", "chat"] = "vlm2vec"
    positions: Literal["auto", "vision", "sequential"] = "auto"
    instruction: str = CANDIDATE
    min_pixels: int = 4 * STEP * STEP
    max_pixels: int = 256 * STEP * STEP  # paper: 200,704, 256 tokens
    max_length: int = 768
    text_instruction: str = ""
    separator: str | None = None
    joiner: str = " "
    suffix: str = ""
    system: str = "You are a helpful assistant."
    pooling: Literal["last", "mean"] = "last"

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self))
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        low, high = self.min_pixels, self.max_pixels
        if not STEP**2 <= low <= high <= _MOST_PIXELS:
            raise ValueError(f"need {STEP**2} <= min_pixels <= max_pixels <= {_MOST_PIXELS}, got {low}, {high}")

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """The size at which the model sees an image: multiples of 28, as Qwen2-VL's processor chooses them.

        In the vlm2vec style images with a side under 28 pixels become 56 x 56, as VLM2Vec makes them.

        Raises:
            ValueError: for an image whose sides differ by more than `MOST_RATIO` to 1.
        """
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        low = self.min_pixels
        high = self.max_pixels
        sides = smart_resize(height, width, STEP, low, high)  # raises above `MOST_RATIO`
        rows, columns = sides
        is_narrow = min(height, width) < STEP
        can_be_smallest = self.prompt_style == "vlm2vec" and low <= 4 * STEP**2 <= high
        if is_narrow and can_be_smallest:
            return 2 * STEP, 2 * STEP
        if rows * columns > high:  # the processor goes beyond narrow limits
            if rows > columns:
                rows = max(STEP, high // (columns * STEP) * STEP)
            else:
                columns = max(STEP, high // (rows * STEP) * STEP)
        return rows, columns
