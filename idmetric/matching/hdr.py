"""HDR video to SDR: colors of Rec. ITU-R BT.2100 (HLG and PQ, with the primaries of BT.2020) to sRGB.

1. Light of the display, in cd/m2: BT.2100, Table 4 (PQ), Table 5 (HLG, for a display of 1,000 cd/m2).
2. Highlights are compressed by the curve of Report BT.2390, section 5.4.1, from a peak of 1,000 cd/m2, applied to the
   largest of R, G and B, so that hues stay.
3. 203 cd/m2, the white of Report BT.2408, becomes the white of sRGB.
4. Colors outside of BT.709 are clipped.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_PEAK = 1000.0  # cd/m2 of the display that the video is made for; more is clipped
_WHITE = 203.0  # cd/m2 that become SDR's white
_CODES = 65536
# BT.2100, Table 4
_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
# BT.2100, Table 5
_A, _B, _C = 0.17883277, 0.28466892, 0.55991073
_SYSTEM_GAMMA = 1.2
_LUMINANCE = np.array([0.2627, 0.6780, 0.0593], np.float32)
# BT.2020 to BT.709, both linear: Report BT.2407, section 2.1
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], dtype=np.float32
)


class Transfer(Enum):
    """A transfer function of BT.2100."""

    PQ = "PQ"
    HLG = "HLG"


def to_sdr(codes: NDArray[np.uint16], transfer: Transfer) -> NDArray[np.uint8]:
    """Non-linear R'G'B' of BT.2100 (height, width, 3), 0-65535, as sRGB, 0-255."""
    if transfer is Transfer.PQ:
        light = _pq_light()[codes]
    else:
        scene = _hlg_scene()[codes]
        luminance = scene @ _LUMINANCE
        light = scene * (_PEAK * luminance ** (_SYSTEM_GAMMA - 1))[..., None]

    brightest = light.max(axis=-1)
    light *= _tone_gain(brightest)[..., None]
    linear = np.clip(light @ (_TO_BT709.T / _WHITE), 0, 1)
    return _srgb_codes()[(linear * (_CODES - 1) + 0.5).astype(np.uint16)]


def _tone_gain(brightest: Floats) -> Floats:
    """The factor for pixels that have this light in their largest component."""
    steps, gains = _tone_curve()
    gain: Floats = np.interp(np.sqrt(brightest), steps, gains).astype(np.float32)
    return gain


@cache
def _tone_curve() -> tuple[Floats, Floats]:
    """The gain at square roots of light: Report BT.2390, section 5.4.1, without its lift of blacks."""
    light = np.linspace(0, np.sqrt(10_000), 4096) ** 2
    signal = _pq_signal(np.minimum(light, _PEAK)) / _pq_signal(np.array(_PEAK))
    highest = _pq_signal(np.array(_WHITE)) / _pq_signal(np.array(_PEAK))
    knee = 1.5 * highest - 0.5
    t = (signal - knee) / (1 - knee)
    spline = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * highest
    mapped = np.where(signal < knee, signal, spline)
    mapped_light = _pq_inverse(mapped * _pq_signal(np.array(_PEAK)))
    gains = np.ones_like(light)
    gains[1:] = mapped_light[1:] / light[1:]
    return np.sqrt(light).astype(np.float32), gains.astype(np.float32)


def _pq_signal(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse EOTF of PQ: cd/m2 -> 0-1."""
    power = (light / 10_000) ** _M1
    signal: NDArray[np.float64] = ((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2
    return signal


def _pq_inverse(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """The EOTF of PQ: 0-1 -> cd/m2."""
    power = signal ** (1 / _M2)
    light: NDArray[np.float64] = 10_000 * (np.maximum(power - _C1, 0) / (_C2 - _C3 * power)) ** (1 / _M1)
    return light


@cache
def _pq_light() -> Floats:
    """cd/m2 of each code."""
    return _pq_inverse(np.linspace(0, 1, _CODES)).astype(np.float32)


@cache
def _hlg_scene() -> Floats:
    """Light of the scene, 0-1, of each code: the inverse OETF of HLG."""
    signal = np.linspace(0, 1, _CODES)
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - _C) / _A) + _B) / 12)
    return scene.astype(np.float32)


@cache
def _srgb_codes() -> NDArray[np.uint8]:
    """The 8-bit code of each of 65,536 steps of linear light (IEC 61966-2-1)."""
    linear = np.linspace(0, 1, _CODES)
    signal = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return (signal * 255 + 0.5).astype(np.uint8)
