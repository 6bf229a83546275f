"""Which people are where: faces, by OpenCV's YuNet and SFace, as an encoder of `idmetric.match`.

    python examples/faces.py face_detection_yunet_2023mar.onnx face_recognition_sface_2021dec.onnx \
        --subject ann=refs/ann --subject ben=refs/ben images/ --regions people.csv

Both files are from https://github.com/opencv/opencv_zoo (YuNet: MIT, 232 KB; SFace: Apache-2.0, 38.7 MB, sha256
0ba9fbfa...34e79); nothing is downloaded. Needs `pip install 'idmetric[eval]' opencv-python-headless`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

import idmetric
from idmetric import Match
from idmetric.metric.paths import all_listed

BORDER = 0.25  # of the longer side: a face that fills its region is found once there is room around it
GRAY = (128, 128, 128)


class Faces:
    """From images to the vectors of their largest faces, None without a face.

    Args:
        detector: the file of YuNet. recognizer: the file of SFace.
        confidence: of YuNet, from which on a face counts.
    """

    def __init__(self, detector: str | Path, recognizer: str | Path, confidence: float = 0.9) -> None:
        for path in (detector, recognizer):
            if not Path(path).is_file():
                raise FileNotFoundError(f"{path}: no such file; see https://github.com/opencv/opencv_zoo")
        self.detector = cv2.FaceDetectorYN.create(str(detector), "", (320, 320), confidence)
        self.recognizer = cv2.FaceRecognizerSF.create(str(recognizer), "")

    def __call__(self, images: Sequence[Image.Image]) -> list[NDArray[np.float32] | None]:
        """The vector (128,) of each image."""
        return [self.vector(image) for image in images]

    def vector(self, image: Image.Image) -> NDArray[np.float32] | None:
        """The vector (128,) of the largest face; None without a face."""
        pixels = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])  # OpenCV's order is BGR
        face = self.largest(pixels)
        if face is None:
            border = round(BORDER * max(image.size))
            pixels = cv2.copyMakeBorder(pixels, border, border, border, border, cv2.BORDER_CONSTANT, value=GRAY)
            face = self.largest(pixels)
        if face is None:
            return None
        aligned = self.recognizer.alignCrop(pixels, face)
        return np.array(self.recognizer.feature(aligned), np.float32).ravel()  # a copy: OpenCV writes over its own

    def largest(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        """The largest face: x, y, width, height, five points and the confidence."""
        height, width = pixels.shape[:2]
        self.detector.setInputSize((width, height))
        _, faces = self.detector.detect(pixels)
        if faces is None:
            return None
        largest: NDArray[np.float32] = max(faces, key=lambda face: face[2] * face[3])
        return largest


def main(argv: Sequence[str] | None = None) -> Match:
    """Match people by their faces, and print the table."""
    parser = argparse.ArgumentParser(description="Which people are where in images, by their faces.")
    parser.add_argument("detector", help="YuNet, an .onnx file")
    parser.add_argument("recognizer", help="SFace, an .onnx file")
    parser.add_argument("images", nargs="+", help="images or folders")
    parser.add_argument("--subject", action="append", required=True, metavar="NAME=PATH", help="a person's photos")
    parser.add_argument("--regions", help="boxes of the people: COCO .json or .csv (default: whole images)")
    parser.add_argument("--threshold", type=float, help="largest distance of one person (SFace's own: 0.637)")
    args = parser.parse_args(argv)

    people = {}
    for subject in args.subject:
        name, sign, photos = subject.partition("=")
        if not sign:
            parser.error(f"--subject {subject}: write NAME=PATH")
        people[name] = photos
    try:
        faces = Faces(args.detector, args.recognizer)
    except FileNotFoundError as error:
        parser.error(str(error))

    metric = idmetric.load("tiny")  # of subjects without an encoder of their own: there is none here
    found = idmetric.match(
        metric,
        people,
        all_listed(args.images),
        regions=args.regions,
        threshold=args.threshold,
        encoders=dict.fromkeys(people, faces),
    )
    print(found.to_table())
    return found


if __name__ == "__main__":
    main()
