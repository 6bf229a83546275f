"""Published numbers of random tables, against the originals' arithmetic on plain lists (`tests.matching.originals`)."""

import math
import random

import numpy as np
import pytest

from idmetric.matching import published
from idmetric.matching.published_values import published_value
from idmetric.matching.similarities import Similarities
from idmetric.metric.errors import RequestError
from tests.matching import originals

TABLES = 200
SIGNATURE = {"model": "m", "distance": "cls", "cut": "exact"}


def number(similarities, name, form="released"):
    return published_value(similarities, name, form, SIGNATURE).value


def similarities_of(names, **given):
    """Similarities of images with these subjects; words and features are empty if they are not given."""
    count = len(names)
    parts = {
        "images": [f"image {number}" for number in range(count)],
        "clips": [""] * count,
        "words": [("",) * len(image_names) for image_names in names],
        "features": [(None,) * len(image_names) for image_names in names],
    }
    return Similarities(**{**parts, "names": names, **given})


def array(rows, regions):
    """(S, R) of lists, also without regions."""
    cells = [[math.nan if cell is None else cell for cell in row] for row in rows]
    return np.array(cells, dtype=float).reshape(len(rows), regions)


class Tables:
    """Random images of some videos: similarities and confidences in sixteenths, so that ties happen and sums are exact.

    Images have 0 to 4 regions and 1 to 4 subjects; cells, and all of a subject's or a region's, may lack a value. With
    casts, an image has rows of subjects outside of its cast as well, which the originals do not know.
    """

    def __init__(self, seed, with_casts=False):
        self.rng = rng = random.Random(seed)
        subjects = rng.randint(1, 4)
        self.roster = tuple(rng.choice(["human_", "animal_"]) + str(number) for number in range(subjects))
        self.words_of_roster = tuple(rng.choice(["", "dog", "cat"]) for _ in range(subjects))
        self.videos = []
        for _ in range(rng.randint(1, 3)):
            counts = [rng.choice([0, 1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 4))]
            self.videos.append(counts)
        self.regions = [count for counts in self.videos for count in counts]
        self.tables = [self.image(subjects, count) for count in self.regions]
        self.scores = [[rng.randint(0, 8) / 8 for _ in range(count)] for count in self.regions]
        self.wholes = [[rng.randint(-16, 16) / 16 for _ in range(subjects)] for _ in self.regions]
        self.casts = [[not with_casts or rng.random() < 0.6 for _ in range(subjects)] for _ in self.regions]

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
        """Values of images that have a cast, by video."""
        parts, start = [], 0
        for counts in self.videos:
            with_cast = [time for time in range(start, start + len(counts)) if any(self.casts[time])]
            parts.append([values[time] for time in with_cast])
            start += len(counts)
        return parts

    def members(self, values):
        """Values of the subjects in the cast, of the images that have one."""
        selected = []
        for cast, of_image in zip(self.casts, values, strict=True):
            if any(cast):
                selected.append([value for value, is_member in zip(of_image, cast, strict=True) if is_member])
        return selected

    def with_cast(self, values):
        """Values of the images that have a cast."""
        return [value for value, cast in zip(values, self.casts, strict=True) if any(cast)]

    @property
    def images(self):
        return self.members(self.tables)

    @property
    def names(self):
        return self.members([self.roster] * len(self.tables))

    @property
    def words(self):
        return self.members([self.words_of_roster] * len(self.tables))

    @property
    def videos_of_members(self):
        """The rows of the cast of each frame, by video."""
        rows = []
        for cast, table in zip(self.casts, self.tables, strict=True):
            rows.append([row for row, is_member in zip(table, cast, strict=True) if is_member])
        return self.by_video(rows)

    @property
    def similarities(self):
        """One reference of each subject."""
        tables = [array(rows, count) for rows, count in zip(self.tables, self.regions, strict=True)]
        count = len(tables)
        return similarities_of(
            [self.roster] * count,
            clips=[f"clip {video}" for video, counts in enumerate(self.videos) for _ in counts],
            words=[self.words_of_roster] * count,
            casts=[np.array(cast) for cast in self.casts],
            to_references=[table[:, None, :] for table in tables],
            aggregated=tables,
            whole=[np.array(row)[:, None] for row in self.wholes],
            scores=[np.array(row) for row in self.scores],
        )


ORIGINALS = {
    "xverse-ip": lambda tables, _: originals.xverse(tables.images, tables.names, humans=False),
    "xverse-id": lambda tables, _: originals.xverse(tables.images, tables.names, humans=True),
    "umo-id-conf": lambda tables, _: originals.umo_id_conf(tables.images),
    "umo-reward": lambda tables, _: originals.umo_reward(tables.images, tables.with_cast(tables.regions)),
    "uno-distill": lambda tables, _: originals.uno_distill(tables.images),
    "psr": lambda tables, form: originals.psr(
        tables.images,
        tables.members(tables.wholes),
        tables.words,
        tables.with_cast(tables.scores) if form == "corrected" else None,
    ),
    "multiid": lambda tables, form: originals.multiid(
        tables.images, tables.with_cast(tables.regions), form == "released"
    ),
    "nexus": lambda tables, form: originals.nexus(
        tables.videos_of_members, tables.by_video(tables.regions), form == "released"
    ),
    "msrvtt-subject": lambda tables, form: originals.msrvtt(
        tables.videos_of_members, tables.by_video(tables.scores), form == "released"
    ),
}
WITH_FORMS = ("psr", "multiid", "nexus", "msrvtt-subject")


@pytest.mark.parametrize("with_casts", [False, True], ids=["everyone", "casts"])
@pytest.mark.parametrize("name", ORIGINALS)
def test_numbers_of_random_tables(name, with_casts):
    values = []
    for seed in range(TABLES):
        tables = Tables(seed, with_casts)
        for form in ("released", "corrected") if name in WITH_FORMS else ("released",):
            value = number(tables.similarities, name, form)
            expected = ORIGINALS[name](tables, form)
            assert value == pytest.approx(expected, abs=1e-9, nan_ok=True), (seed, form)
            values.append(value)
    assert len({round(value, 6) for value in values if not math.isnan(value)}) > TABLES / 3


# Stories


class Story:
    """Shots with random casts and regions; characters have 1 to 3 references, and cells may lack a value."""

    def __init__(self, seed):
        rng = random.Random(seed)
        names = ["cat", "duck", "cow", "pig"][: rng.randint(1, 4)]
        references = {name: rng.randint(1, 3) for name in names}
        self.roster = tuple(names)
        self.casts, self.regions, self.tables, self.features = [], [], [], []
        for _ in range(rng.randint(1, 6)):
            regions = rng.choice([0, 1, 2, 2, 3, 4])
            table = {}
            for name in names:
                rows = []
                for _ in range(references[name]):
                    rows.append([None if rng.random() < 0.1 else rng.randint(-16, 16) / 16 for _ in range(regions)])
                table[name] = rows
            self.casts.append([name for name in names if rng.random() < 0.6])
            self.regions.append(regions)
            self.tables.append(table)
            angles = [rng.uniform(0, 3) for _ in range(regions)]
            self.features.append([[math.cos(angle), math.sin(angle)] for angle in angles])

    @property
    def shots(self):
        """The tables of the casts."""
        return [[table[name] for name in cast] for table, cast in zip(self.tables, self.casts, strict=True)]

    @property
    def similarities(self):
        most_references = max(len(rows) for rows in self.tables[0].values())
        to_references = []
        for table, regions in zip(self.tables, self.regions, strict=True):
            padded = np.full((len(self.roster), most_references, regions), np.nan)
            for number, name in enumerate(self.roster):
                padded[number, : len(table[name])] = array(table[name], regions)
            to_references.append(padded)
        features = [np.array(vectors).reshape(-1, 2) for vectors in self.features]
        count = len(self.tables)
        return similarities_of(
            [self.roster] * count,
            casts=[np.array([name in cast for name in self.roster]) for cast in self.casts],
            to_references=to_references,
            aggregated=[similarity[:, 0] for similarity in to_references],
            features=[(of_shot,) * len(self.roster) for of_shot in features],
        )


def test_numbers_of_random_stories():
    values = []
    for seed in range(TABLES):
        story = Story(seed)
        shots, casts, regions = story.shots, story.casts, story.regions
        for form in ("released", "corrected"):
            is_released = form == "released"
            expected = {
                "vistory-cross": originals.vistory_cross(shots, casts, regions, not is_released),
                "vistory-self": originals.vistory_self(shots, casts, regions, story.features, is_released),
            }
            if is_released:
                expected["vistory-occm"] = originals.occm(casts, regions)
            for name, value in expected.items():
                assert number(story.similarities, name, form) == pytest.approx(value, nan_ok=True), (seed, name, form)
                values.append(value)
    assert len({round(value, 6) for value in values if not math.isnan(value)}) > TABLES


def with_cosines(*cosines):
    """Unit vectors with these cosines to the first ones, by Gram's matrix."""
    gram = np.array(cosines)
    return np.linalg.cholesky(gram)


def perfect_story(with_casts=True):
    """Four shots of two characters, one in each, and a bystander in each, more like nobody.

    A character's pictures have a cosine of .932 to its reference and of .875 among each other, bystanders .084.
    """
    cat, duck, cat_1, cat_2, duck_1, duck_2, *bystanders = with_cosines(*perfect_cosines())
    crops = [cat_1, duck_1, cat_2, duck_2]
    count = len(crops)
    to_references, features = [], []
    for crop, bystander in zip(crops, bystanders, strict=True):
        regions = np.stack([bystander, crop])
        to_references.append(np.stack([cat, duck])[:, None] @ regions.T)
        features.append((regions, regions))
    casts = [np.array([True, False]), np.array([False, True])] * 2
    return similarities_of(
        [("cat", "duck")] * count,
        casts=casts if with_casts else [],
        to_references=to_references,
        aggregated=[similarity[:, 0] for similarity in to_references],
        features=features,
    )


def perfect_cosines():
    """Of the references of cat and duck, two pictures of each, and four bystanders."""
    gram = np.eye(10)
    gram[0, 2:4] = gram[1, 4:6] = 0.932
    gram[2, 3] = gram[4, 5] = 0.875
    gram[:2, 6:] = 0.084
    gram[2:6, 6:] = 0.0783
    for first in range(6, 10):
        gram[first, first + 1 :] = 0.3418
    return np.triu(gram) + np.triu(gram, 1).T


def test_vistory_numbers_know_the_cast_alone():
    """A perfect story with a bystander in each shot; without casts the characters are looked for in all shots."""
    story = perfect_story()
    for form in ("released", "corrected"):
        assert number(story, "vistory-cross", form) == pytest.approx(0.932)
        assert number(story, "vistory-self", form) == pytest.approx(0.875)
    assert number(story, "vistory-occm") == pytest.approx(36.8, abs=0.02)

    without_casts = perfect_story(with_casts=False)
    assert number(without_casts, "vistory-cross") == pytest.approx(0.508)
    assert number(without_casts, "vistory-self") == pytest.approx(0.255, abs=5e-4)
    assert number(without_casts, "vistory-occm") == pytest.approx(100)


def test_a_shot_that_should_show_nobody_is_skipped():
    similarities = perfect_story()
    casts = [*similarities.casts[:3], np.array([False, False])]
    story = Similarities(**{**vars(similarities), "casts": casts})
    assert number(story, "vistory-cross") == pytest.approx(0.932)
    assert number(story, "vistory-self") == pytest.approx((0.875 + 1) / 2)  # the duck is found once
    assert number(story, "vistory-self", "corrected") == pytest.approx(0.875)
    assert number(story, "vistory-occm") == pytest.approx(36.8, abs=0.02)
    for name in ("umo-reward", "uno-distill", "multiid", "xverse-ip"):
        assert len([row for row in value_rows(story, name) if row["image"] and not row["subject"]]) == 3


def value_rows(similarities, name, form="released"):
    return published_value(similarities, name, form, SIGNATURE).values


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
    count = len(frames)
    return similarities_of(
        [()] * count,
        clips=clips,
        seconds=seconds,
        to_references=[np.empty((0, 0, 0))] * count,
        aggregated=[np.empty((0, 0))] * count,
        frames=frames,
    )


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
    return similarities_of(
        [("ann", "rex")[: len(tables[0])]] * len(tables),
        clips=["clip"] * len(tables),
        words=[words] * len(tables),
        to_references=[table[:, None, :] for table in tables],
        aggregated=tables,
        whole=[np.full((len(table), 1), 0.2) for table in tables],
        scores=given,
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
    similarities = similarities_of(
        [("ann",)] * 3,
        clips=["a", "b", "b"],
        to_references=[image[:, None] for image in images],
        aggregated=images,
        scores=[np.ones(1)] * 3,
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


def test_nexus_compares_a_region_with_the_subject_that_it_was_found_for():
    """.655, where all pairs of regions and subjects have .479."""
    clip = of_one_clip([[[0.66, 0.30], [0.306, 0.65]]])
    assert number(clip, "nexus", "corrected") == pytest.approx(0.479)
    own = Similarities(**{**vars(clip), "found_for": [[("ann",), ("rex",)]]})
    assert number(own, "nexus", "corrected") == pytest.approx(0.655)
    assert number(own, "nexus") == pytest.approx(0.655 / 2)
    of_both = Similarities(**{**vars(clip), "found_for": [[("ann", "rex"), ()]]})
    assert number(of_both, "nexus", "corrected") == pytest.approx(0.479)
