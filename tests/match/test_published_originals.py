"""Published numbers of random tables, against the originals' arithmetic on plain lists (`tests.match.originals`)."""

import math
import random

import numpy as np
import pytest

from idmetric.match import published
from idmetric.match.named import Similarities, published_value
from idmetric.metric.scoring.scores import RequestError
from tests.match import originals

TABLES = 200
SIGNATURE = {"model": "m", "distance": "cls", "cut": "exact"}


def number(similarities, name, form="released"):
    return published_value(similarities, name, form, SIGNATURE).value


def array(rows, regions):
    """(S, R) of lists, also without regions."""
    cells = [[math.nan if cell is None else cell for cell in row] for row in rows]
    return np.array(cells, dtype=float).reshape(len(rows), regions)


class Tables:
    """Random images of some videos: similarities and confidences in sixteenths, so that ties happen and sums are exact.

    Images have 0 to 4 regions and 1 to 4 subjects; cells, and all of a subject's or a region's, may lack a value.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        subjects = rng.randint(1, 4)
        self.names = tuple(rng.choice(["human_", "animal_"]) + str(number) for number in range(subjects))
        self.words = tuple(rng.choice(["", "dog", "cat"]) for _ in range(subjects))
        self.videos = []
        for _ in range(rng.randint(1, 3)):
            counts = [rng.choice([0, 1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 4))]
            self.videos.append(counts)
        self.regions = [count for counts in self.videos for count in counts]
        self.images = [self.image(subjects, count) for count in self.regions]
        self.scores = [[rng.randint(0, 8) / 8 for _ in range(count)] for count in self.regions]
        self.whole = [[rng.randint(-16, 16) / 16 for _ in range(subjects)] for _ in self.regions]

    def image(self, subjects, regions):
        rng = self.rng
        rows = []
        blank = rng.choice([None, None, None, *range(regions)])
        for _ in range(subjects):
            row = []
            is_lost = rng.random() < 0.1
            for region in range(regions):
                lacks_value = is_lost or region == blank or rng.random() < 0.15
                row.append(None if lacks_value else rng.randint(-16, 16) / 16)
            rows.append(row)
        return rows

    def by_video(self, values):
        parts, start = [], 0
        for counts in self.videos:
            parts.append(values[start : start + len(counts)])
            start += len(counts)
        return parts

    @property
    def similarities(self):
        """One reference of each subject."""
        tables = [array(rows, count) for rows, count in zip(self.images, self.regions, strict=True)]
        clips = [f"clip {video}" for video, counts in enumerate(self.videos) for _ in counts]
        return Similarities(
            to_references=[table[:, None, :] for table in tables],
            aggregated=tables,
            names=[self.names] * len(tables),
            words=[self.words] * len(tables),
            whole=[np.array(row)[:, None] for row in self.whole],
            scores=[np.array(row) for row in self.scores],
            features=[[] for _ in self.names],
            clips=clips,
        )


ORIGINALS = {
    "xverse-ip": lambda tables, _: originals.xverse(tables.images, [tables.names] * len(tables.images), humans=False),
    "xverse-id": lambda tables, _: originals.xverse(tables.images, [tables.names] * len(tables.images), humans=True),
    "umo-id-conf": lambda tables, _: originals.umo_id_conf(tables.images),
    "umo-reward": lambda tables, _: originals.umo_reward(tables.images, tables.regions),
    "uno-distill": lambda tables, _: originals.uno_distill(tables.images),
    "psr": lambda tables, form: originals.psr(
        tables.images,
        tables.whole,
        [tables.words] * len(tables.images),
        tables.scores if form == "corrected" else None,
    ),
    "multiid": lambda tables, form: originals.multiid(tables.images, tables.regions, form == "released"),
    "nexus": lambda tables, form: originals.nexus(
        tables.by_video(tables.images), tables.by_video(tables.regions), form == "released"
    ),
    "msrvtt-subject": lambda tables, form: originals.msrvtt(
        tables.by_video(tables.images), tables.by_video(tables.scores), form == "released"
    ),
}
WITH_FORMS = ("psr", "multiid", "nexus", "msrvtt-subject")


@pytest.mark.parametrize("name", ORIGINALS)
def test_numbers_of_random_tables(name):
    values = []
    for seed in range(TABLES):
        tables = Tables(seed)
        for form in ("released", "corrected") if name in WITH_FORMS else ("released",):
            value = number(tables.similarities, name, form)
            expected = ORIGINALS[name](tables, form)
            assert value == pytest.approx(expected, abs=1e-9, nan_ok=True), (seed, form)
            values.append(value)
    assert len({round(value, 6) for value in values if not math.isnan(value)}) > TABLES / 2


def drifting(seed):
    """Frames on a sphere that turn at random, in lists, and their rate."""
    rng = random.Random(seed)
    fps = rng.choice([1, 2, 3.5, 8, 23.976])
    frames, vector = [], [1.0, 0.0, 0.0]
    for _ in range(rng.randint(2, 60)):
        vector = [side + rng.gauss(0, rng.choice([0.02, 0.3])) for side in vector]
        length = math.sqrt(originals.cosine(vector, vector))
        vector = [side / length for side in vector]
        frames.append(vector)
    return frames, fps


def of_frames(videos, rates):
    frames, clips, seconds = [], [], []
    for video, (vectors, fps) in enumerate(zip(videos, rates, strict=True)):
        frames += [np.array(vector) for vector in vectors]
        clips += [f"clip {video}"] * len(vectors)
        seconds += [place / fps for place in range(len(vectors))]
    return Similarities(to_references=[np.empty((0, 0, 0))] * len(frames), frames=frames, clips=clips, seconds=seconds)


def test_vbench_long_of_random_videos():
    for seed in range(TABLES):
        drawn = [drifting(1000 * seed + video) for video in range(random.Random(seed).randint(1, 3))]
        videos = [frames for frames, _ in drawn]
        rates = [fps for _, fps in drawn]
        similarities = of_frames(videos, rates)
        assert number(similarities, "vbench-long") == pytest.approx(originals.vbench_long(videos, rates)), seed
        by_video = originals.vbench_long_of_videos(videos, rates)
        assert number(similarities, "vbench-long", "corrected") == pytest.approx(by_video), seed


def turning(steps):
    angles = np.concatenate([[0.0], np.cumsum(steps)])
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def test_vbench_long_extends_the_last_piece_backwards():
    """40 frames at 8 a second: pieces 0-15, 16-31 and 24-39. With 32-39 as the last it was .697."""
    steps = [0.216] * 27 + [0.45] + [0.0] * 11
    frames = turning(steps)
    pieces = [frames[:16], frames[16:32], frames[24:]]
    by_hand = originals.average([originals.average(originals.vbench_values(piece)) for piece in pieces])
    assert by_hand == pytest.approx(0.673, abs=5e-4)
    pooled = originals.average(
        originals.vbench_values(frames[:16])
        + originals.vbench_values(frames[16:32])
        + originals.vbench_values(frames[32:])
    )
    assert pooled == pytest.approx(0.697, abs=5e-4)
    assert published.vbench_long([frames], [np.arange(40) / 8]) == pytest.approx(by_hand)


def test_times_rounded_to_milliseconds_have_the_rate_of_the_video():
    """At 30 a second, 29.99 by the times, a piece has 60 frames; at 29.97, 58."""
    for fps, frames in ((30, 60), (30000 / 1001, 58), (24, 48), (24000 / 1001, 46), (8, 16)):
        for count in (100, 149, 150, 151):
            seconds = np.round(np.arange(count) / fps, 3)
            piece = published.two_second_pieces(np.zeros((count, 2)), published.frame_rate(seconds))[0]
            assert len(piece) == frames, (fps, count)


def test_vbench_long_needs_a_frame_of_each_second():
    videos, rates = [[[1.0, 0.0]] * 4], [0.5]
    with pytest.raises(RequestError, match="frames='all'"):
        number(of_frames(videos, rates), "vbench-long")


def test_a_cell_without_a_value_is_not_assigned_where_another_assignment_has_values():
    similarity = np.array([[-0.1, np.nan], [0.95, -0.2]])
    assert published.assigned_cells(similarity).tolist() == [[True, False], [False, True]]


def test_multiid_keeps_the_matched_cells_of_an_image_with_too_few_regions():
    missing = np.array([[0.80], [0.42]])
    assert published.multiid([missing]) == pytest.approx(0.80)
    assert published.multiid_similarities([missing, np.empty((2, 0))]) == pytest.approx([0.80])
    assert math.isnan(published.multiid([np.empty((2, 0))]))


def of_one_clip(images, words=("", ""), scores=None):
    """Similarities of one clip, of lists (S, R) for each frame."""
    tables = [array(rows, len(rows[0])) for rows in images]
    given = [np.ones(table.shape[1]) for table in tables]
    if scores is not None:
        given = [np.array(row) for row in scores]
    return Similarities(
        to_references=[table[:, None, :] for table in tables],
        aggregated=tables,
        names=[("ann", "rex")[: len(tables[0])]] * len(tables),
        words=[words] * len(tables),
        whole=[np.full((len(table), 1), 0.2) for table in tables],
        scores=given,
        features=[[], []],
        clips=["clip"] * len(tables),
    )


def test_nexus_is_the_mean_of_all_boxes_by_the_number_of_pairs():
    """Two boxes in one frame and one in the next: (.36 + .3684 + .3726) / 3 / 2; by means of frames it was .1842."""
    clip = of_one_clip([[[0.36, 0.3684]], [[0.3726]]])
    by_frame = ((0.36 + 0.3684) / 2 + 0.3726) / 2
    assert by_frame / 2 == pytest.approx(0.1842)
    assert number(clip, "nexus") == pytest.approx(0.1835)
    assert number(clip, "nexus", "corrected") == pytest.approx(2 * 0.1835)


def test_nexus_has_no_value_without_boxes_and_is_0_if_none_was_kept():
    assert math.isnan(published.nexus([np.empty((1, 0))]))
    assert published.nexus([np.array([[np.nan]])]) == 0
    boxes_of_another = [np.array([[False]])]
    assert math.isnan(published.nexus([np.array([[np.nan]])], is_found=boxes_of_another))
    found_but_not_kept = [np.array([[True, True]]), np.array([[True]])]
    assert published.nexus([np.array([[0.6, np.nan]]), np.array([[np.nan]])], is_found=found_but_not_kept) == 0.3


def test_psr_of_two_subjects_of_one_category_takes_two_boxes():
    rows = [[0.9, 0.3], [0.4, 0.8]]
    assert number(of_one_clip([rows], ("dog", "dog")), "psr") == pytest.approx((0.9 + 0.8) / 2)
    assert number(of_one_clip([rows], ("dog", "cat")), "psr") == pytest.approx((0.9 + 0.4) / 2)
    assert number(of_one_clip([rows]), "psr") == pytest.approx((0.9 + 0.4) / 2)
    one_box = [[0.9], [0.4]]
    assert number(of_one_clip([one_box], ("dog", "dog")), "psr") == pytest.approx((0.9 + 0.2) / 2)
    ranked = of_one_clip([rows], ("dog", "dog"), scores=[[0.5, 0.9]])
    assert number(ranked, "psr", "corrected") == pytest.approx((0.3 + 0.4) / 2)


def test_msrvtt_is_the_mean_of_videos():
    """One frame of .638, and two of .26: .449, where the mean of frames was .386."""
    images = [np.array([[value]]) for value in (0.638, 0.26, 0.26)]
    similarities = Similarities(
        to_references=[image[:, None] for image in images],
        aggregated=images,
        scores=[np.ones(1)] * 3,
        features=[[]],
        clips=["a", "b", "b"],
    )
    assert number(similarities, "msrvtt-subject") == pytest.approx(0.449)
    of_frames = 0.638 + 0.26 + 0.26
    assert of_frames / 3 == pytest.approx(0.386)


def test_msrvtt_takes_the_most_confident_box():
    """.382, where the best boxes have .669; regions without scores give the best."""
    boxes = [[0.30, 0.70], [0.464, 0.638]]
    assert number(of_one_clip([boxes], scores=[[0.9, 0.4]]), "msrvtt-subject") == pytest.approx(0.382)
    assert number(of_one_clip([boxes], scores=[[0.4, 0.9]]), "msrvtt-subject") == pytest.approx(0.669)
    assert number(of_one_clip([boxes]), "msrvtt-subject") == pytest.approx(0.669)


def test_xverse_counts_humans_in_the_id_similarity_alone():
    images = [[[0.9, 0.1], [0.2, 0.6]]]
    named = of_one_clip(images)
    humans = Similarities(**{**vars(named), "names": [("human_05_man", "animal_dog")]})
    assert number(humans, "xverse-ip") == pytest.approx(60)
    assert number(humans, "xverse-id") == pytest.approx(90)
    assert number(named, "xverse-ip") == pytest.approx(75)
    assert math.isnan(number(named, "xverse-id"))
