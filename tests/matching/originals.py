"""The arithmetic of published benchmarks on plain lists, one step at a time, from the formulas of their sources.

A cell is a float, or None where nothing was compared. `images[time][subject][region]` is a similarity.
"""

import math

import scipy.optimize


def average(values):
    return sum(values) / len(values) if values else math.nan


def present(row):
    return [cell for cell in row if cell is not None]


def assignment(similarity, regions):
    """The cells (subject, region) that the Hungarian method assigns; one without a value costs 1e6, and is dropped."""
    cost = []
    for row in similarity:
        cost.append([1e6 if cell is None else -cell for cell in row])
    if not cost or not regions:
        return []
    cells = []
    for subject, region in zip(*scipy.optimize.linear_sum_assignment(cost), strict=True):
        if similarity[subject][region] is not None:
            cells.append((int(subject), int(region)))
    return cells


def xverse(images, names, humans):
    scores = []
    for similarity, image_names in zip(images, names, strict=True):
        for row, name in zip(similarity, image_names, strict=True):
            if name.startswith("human") != humans:
                continue
            highest = 0.0
            if present(row):
                highest = max(present(row))
            scores.append(highest)
    return 100 * average(scores)


def umo_id_conf(images):
    scores = []
    for similarity in images:
        for row in similarity:
            ranked = sorted(present(row), reverse=True)
            if len(ranked) < 2:
                continue
            first, second = ranked[0], ranked[1]
            scores.append(min(1.0, (first - second) / first) if first > 0 else 0.0)
    return 100 * average(scores)


def umo_reward(images, regions):
    rewards = []
    for similarity, count in zip(images, regions, strict=True):
        assigned = assignment(similarity, count)
        signed = []
        for subject, row in enumerate(similarity):
            for region, cell in enumerate(row):
                if cell is not None:
                    signed.append(cell if (subject, region) in assigned else -cell)
        rewards.append(average(signed) if signed else 0.0)
    return average(rewards)


def uno_distill(images):
    lowest = []
    for similarity in images:
        best = []
        for row in similarity:
            best.append(max(present(row)) if present(row) else 0.0)
        lowest.append(min(best))
    return average(lowest)


def psr(images, whole, words, scores=None):
    """With `scores` the boxes are sorted by them, as they are not in the release."""
    results = []
    for time, similarity in enumerate(images):
        same = len(words[time]) == 2 and words[time][0] != "" and words[time][0] == words[time][1]
        for subject, row in enumerate(similarity):
            boxes = [region for region, cell in enumerate(row) if cell is not None]
            if scores is not None:
                boxes.sort(key=lambda region, time=time: -scores[time][region])
            wanted = subject if same else 0
            try:
                results.append(row[boxes[wanted]])
            except IndexError:
                results.append(whole[time][subject])
    return average(results)


def quartile(ordered, share):
    """By linear interpolation between the two nearest."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def multiid(images, regions, without_outliers):
    samples = []
    for similarity, count in zip(images, regions, strict=True):
        cells = assignment(similarity, count)
        if cells:
            samples.append(average([similarity[subject][region] for subject, region in cells]))
    if not samples or not without_outliers:
        return average(samples)
    ordered = sorted(samples)
    first, third = quartile(ordered, 0.25), quartile(ordered, 0.75)
    reach = 1.5 * (third - first)
    inside = [sample for sample in ordered if first - reach <= sample <= third + reach]
    if len(inside) < len(ordered) / 2:
        return quartile(ordered, 0.5)
    return average(inside)


# Stories: `shots[time][subject][reference][region]`, and of each shot the names of its cast


def vistory_boxes(shot, regions):
    """The region of each character of a shot, by the best of its references."""
    best = []
    for references in shot:
        row = []
        for region in range(regions):
            cells = present([reference[region] for reference in references])
            row.append(max(cells) if cells else None)
        best.append(row)
    return dict(assignment(best, regions))


def vistory_cross(shots, casts, regions, counts_missing):
    of_characters = {}
    for shot, cast, count in zip(shots, casts, regions, strict=True):
        boxes = vistory_boxes(shot, count)
        for number, name in enumerate(cast):
            values = of_characters.setdefault(name, [])
            if number in boxes:
                values.append(average(present([reference[boxes[number]] for reference in shot[number]])))
            elif counts_missing:
                values.append(0.0)
    return average([average(values) if values else 0.0 for values in of_characters.values()])


def vistory_self(shots, casts, regions, features, one_counts):
    """`features[time][region]` are vectors; `one_counts`: a character that is found once or never counts 1 or 0."""
    crops = {}
    for time, (shot, cast, count) in enumerate(zip(shots, casts, regions, strict=True)):
        boxes = vistory_boxes(shot, count)
        for number, name in enumerate(cast):
            of_character = crops.setdefault(name, [])
            if number in boxes:
                of_character.append(features[time][boxes[number]])
    results = []
    for vectors in crops.values():
        cosines = []
        for later in range(len(vectors)):
            for earlier in range(later):
                cosines.append(cosine(vectors[earlier], vectors[later]))
        if cosines:
            results.append(average(cosines))
        elif one_counts:
            results.append(float(len(vectors)))
    return average(results)


def occm(casts, regions):
    scores = []
    for cast, detected in zip(casts, regions, strict=True):
        expected = len(cast)
        if expected == 0:
            continue
        scores.append(100 * math.exp(-float(abs(detected - expected)) / (1e-6 + expected)))
    return average(scores)


# Video: `videos` are lists of such images


def nexus(videos, regions, divided):
    """Every region was found for every subject that it has a value for."""
    scores = []
    for images, counts in zip(videos, regions, strict=True):
        if not sum(counts):
            continue
        boxes, pairs = [], 0
        for similarity in images:
            for row in similarity:
                boxes += present(row)
                pairs += 1 if present(row) else 0
        score = 0.0
        if boxes:
            score = average(boxes)
            if divided:
                score /= pairs
        scores.append(score)
    return average(scores)


def msrvtt(videos, scores, counts_missing):
    of_videos = []
    for images, video_scores in zip(videos, scores, strict=True):
        values = []
        for similarity, confidences in zip(images, video_scores, strict=True):
            for row in similarity:
                chosen = None
                for region, cell in enumerate(row):
                    if cell is None:
                        continue
                    if chosen is None or confidences[region] > confidences[chosen]:
                        chosen = region
                if chosen is not None:
                    values.append(row[chosen])
                elif counts_missing:
                    values.append(0.0)
        if values:
            of_videos.append(average(values))
    return average(of_videos)


def cosine(left, right):
    return sum(a * b for a, b in zip(left, right, strict=True))


def vbench_values(frames):
    values = []
    for number in range(1, len(frames)):
        previous = max(0.0, cosine(frames[number], frames[number - 1]))
        first = max(0.0, cosine(frames[number], frames[0]))
        values.append((previous + first) / 2)
    return values


def long_pieces(frames, fps):
    """As the release cuts a video into files."""
    length = int(fps) * 2
    if len(frames) < length:
        return [frames]
    pieces = []
    whole_pieces = len(frames) // length
    for number in range(whole_pieces):
        pieces.append(frames[number * length : (number + 1) * length])
    remaining = len(frames) % length
    if remaining:
        lacking = length - remaining
        pieces.append(frames[whole_pieces * length - lacking :])
    return pieces


def vbench_long(videos, rates):
    pieces_of_videos = [long_pieces(frames, fps) for frames, fps in zip(videos, rates, strict=True)]
    if max(len(pieces) for pieces in pieces_of_videos) < 2:
        pooled = []
        for frames in videos:
            pooled += vbench_values(frames)
        return average(pooled)
    of_pieces = []
    for pieces in pieces_of_videos:
        for piece in pieces:
            of_pieces.append(average(vbench_values(piece)))
    return average(of_pieces)


def vbench_long_of_videos(videos, rates):
    of_videos = []
    for frames, fps in zip(videos, rates, strict=True):
        of_videos.append(average([average(vbench_values(piece)) for piece in long_pieces(frames, fps)]))
    return average(of_videos)
