"""Studies with people: questions, votes of strangers, labels as in ID-Sim's D.2, and models against them."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from idmetric.cli import eval as cli
from idmetric.data.manifest.table import Manifest, Row, read
from idmetric.protocols.common.scorers import EvalSettings
from idmetric.protocols.judges.questions import INDIVIDUAL
from idmetric.protocols.options import StudyOptions
from idmetric.protocols.study.protocol import run
from idmetric.protocols.study.study import Study, draw_items, draw_sentinels, new_study, owners, read_study
from idmetric.protocols.study.votes import Votes, collect, table
from tests.protocols.parts import PLAIN, Scripted, broken, picture, values
from tests.runner import Runner

PEOPLE = [f"{k:016x}" for k in range(1, 12)]
NASTY = "<img src=x onerror=alert(1)>&'\""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Twelve subjects of two categories: three views each, and a distractor of the first."""
    root = tmp_path_factory.mktemp("study")
    rows = []
    for k in range(12):
        about: dict[str, Any] = {"dataset": "d", "category": "cup" if k % 2 else "cat"}
        for view in range(3):
            rows.append(Row(f"s{k}", picture(root / f"secret-{k}-{view}.png", k, view), id=f"{k}/{view}", **about))
        near = picture(root / f"secret-{k}-near.png", 100 + k)
        rows.append(Row(f"s{k}~", near, id=f"{k}/near", role="distractor", parent=f"{k}/0", **about))
    return Manifest.from_rows(rows, root)


def made(data: Manifest, task: Any = "pairs", count: int = 20, **options: Any) -> Study:
    return new_study(data, task, count, **{"per_page": 8, "sentinels": 4, "side": 64, "title": "T", **options})


def answer(
    folder: Path, study: Study, person: str, choices: Mapping[str, str] | str, page: int = 1, **changes: Any
) -> Path:
    """A file of answers to a page: all sentinels right, unless `choices` says otherwise."""
    answers = {}
    for question in study.pages[page]:
        given = choices if isinstance(choices, str) else choices.get(question.id)
        answers[question.id] = (None if isinstance(choices, str) else given) or question.sentinel or given
    content = {
        "study": study.id, "page": page, "participant": person, "revision": 1,
        "answers": {k: v for k, v in answers.items() if v is not None}, **changes,
    }  # fmt: skip
    path = folder / f"{study.id[:4]}-{page}-{person}-{len(list(folder.glob('*')))}.json"
    path.write_text(json.dumps(content))
    return path


# Questions


def test_half_of_the_pairs_show_one_identity_and_half_of_the_others_are_hard(data: Manifest) -> None:
    pairs = draw_items(data, "pairs", 20)
    identity, parent, ids = data.column("identity"), data.column("parent"), data.column("id")
    category, path = data.column("category"), data.column("path")
    assert len(set(pairs)) == 20
    assert sum(identity[a] == identity[b] for a, b in pairs) == 10
    assert all(path[a] != path[b] for a, b in pairs)
    others = [(a, b) for a, b in pairs if identity[a] != identity[b]]
    made_from = [(a, b) for a, b in others if parent[a] == ids[b] or parent[b] == ids[a]]
    assert made_from
    assert sum((a, b) in made_from or category[a] == category[b] for a, b in others) >= 5
    assert draw_items(data, "pairs", 20) == pairs != draw_items(data, "pairs", 20, seed=1)


def test_a_triplet_holds_one_image_of_the_anchors_identity_on_a_random_side(data: Manifest) -> None:
    found = draw_items(data, "triplets", 24)
    identity, path = data.column("identity"), data.column("path")
    left = [identity[a] == identity[x] for a, x, _ in found]
    assert all((identity[a] == identity[x]) != (identity[a] == identity[y]) for a, x, y in found)
    assert all(len({path[row] for row in three}) == 3 for three in found)
    assert 3 < sum(left) < len(left) - 3


def test_groups_of_a_manifest_are_its_questions(data: Manifest) -> None:
    rows = data.take([0, 1, 4, 8, 9, 12])
    slots = ["anchor", "candidate", "candidate", "anchor", "positive", "negative"]
    grouped = rows.replace(group=["g"] * 3 + ["h"] * 3, slot=slots, identity=None)
    assert sorted(draw_items(grouped, "pairs", 9)) == [(0, 1), (0, 2), (3, 4), (3, 5)]
    assert {frozenset(three) for three in draw_items(grouped, "triplets", 9)} == {frozenset({3, 4, 5})}
    assert len(draw_items(grouped, "pairs", 3)) == 3
    sides = {draw_items(grouped, "triplets", 1, seed=seed)[0] for seed in range(12)}
    assert sides == {(3, 4, 5), (3, 5, 4)}


def test_sentinels_are_an_image_and_itself_or_one_of_another_kind(data: Manifest) -> None:
    category = data.column("category")
    pairs = draw_sentinels(data, "pairs", 8, 0, 0)
    assert Counter(right for _, right in pairs) == {"same": 4, "different": 4}
    for (a, b), right in pairs:
        assert (a == b) == (right == "same")
        assert a == b or category[a] != category[b]
    for (a, x, y), right in draw_sentinels(data, "triplets", 8, 0, 0):
        assert a == (x if right == "left" else y)
        assert category[a] != category[y if right == "left" else x]
    assert draw_sentinels(data, "pairs", 8, 0, 1) != pairs
    with pytest.raises(ValueError, match="images of two subjects"):
        draw_sentinels(data.filter(identity="s0"), "pairs", 2, 0, 0)


def test_pages_divide_the_questions_and_have_sentinels_each(data: Manifest) -> None:
    study = made(data)
    sizes = [(len(page), sum(q.sentinel is not None for q in page)) for page in study.pages.values()]
    assert sizes == [(10, 4), (11, 4), (11, 4)]
    ids = [q.id for page in study.pages.values() for q in page]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{12}", name) for name in ids)
    places = [k for page in study.pages.values() for k, q in enumerate(page) if q.sentinel]
    assert set(places) != set(range(6, 10))  # not all at the end
    paths = {data.column("id")[row]: data.column("path")[row] for row in range(len(data))}
    held = zip(study.items.column("x_image"), study.items.column("path"), strict=True)
    assert all(paths[image] == path for image, path in held)


def test_the_id_is_that_of_what_participants_see(data: Manifest, tmp_path: Path) -> None:
    study = made(data)
    assert made(data).id == study.id
    changed = [made(data, **o).id for o in ({"title": "U"}, {"side": 65}, {"seed": 1}, {"count": 19}, {"sentinels": 2})]
    changed.append(made(data, "triplets").id)
    moved = Manifest(data.table.slice(0), data.root)
    assert made(moved).id == study.id
    file = Path(data.column("path")[0])
    before = file.read_bytes()
    try:
        picture(file, 77)
        assert made(data, count=60).id != study.id
    finally:
        file.write_bytes(before)
    assert len({study.id, *changed}) == 7


def test_a_study_is_read_as_it_was_written(data: Manifest, tmp_path: Path) -> None:
    study = made(data, title=NASTY)
    study.write(tmp_path / "deep" / "study")
    again = read_study(tmp_path / "deep" / "study")
    assert (again.id, again.task, again.title, again.side) == (study.id, "pairs", NASTY, 64)
    assert again.pages == study.pages
    assert Path(str(again.items.source(0))).resolve() == Path(str(study.items.source(0))).resolve()


@pytest.mark.parametrize("content", ["", "[1]", "{}"])
def test_a_damaged_study_is_named(data: Manifest, tmp_path: Path, content: str) -> None:
    made(data).write(tmp_path)
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(ValueError, match=f"{tmp_path.name}: not readable as a study"):
        read_study(tmp_path)


# Votes


@pytest.fixture
def study(data: Manifest) -> Study:
    return made(data)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"alert(1)", "Expecting value"),
        (b"[" * 100_000, "nested"),
        (b" " * 1_000_001, "more than 1000000 bytes"),
        ([], "not answers to a page"),
        ({"study": "f" * 16}, "answers to another study"),
        ({"participant": "Jane <b>"}, "not as the page writes them"),
        ({"revision": True}, "not as the page writes them"),
        ({"page": 9}, "KeyError: 9"),
        ({"answers": {"__proto__": "same"}}, "not as the page writes them"),
        ("maybe", "not as the page writes them"),
    ],
)
def test_answers_of_strangers_are_refused_with_the_reason(
    study: Study, tmp_path: Path, given: Any, message: str
) -> None:
    path = answer(tmp_path, study, PEOPLE[0], "same")
    content = json.loads(path.read_text())
    if isinstance(given, bytes):
        path.write_bytes(given)
    elif isinstance(given, dict) and given.keys() <= content.keys():
        path.write_text(json.dumps({**content, **given}))
    elif isinstance(given, list):
        path.write_text(json.dumps(given))
    else:
        content["answers"] = dict.fromkeys(content["answers"], given)
        path.write_text(json.dumps(content))
    votes = collect([path], study)
    assert message in votes.refused[str(path)]
    assert not votes.participants


def test_who_misses_one_sentinel_does_not_count_on_any_page(study: Study, tmp_path: Path) -> None:
    sentinel = next(q for q in study.pages[2] if q.sentinel)
    wrong = {"same": "different", "different": "same"}[sentinel.sentinel or ""]
    files = [answer(tmp_path, study, person, "same", page) for person in PEOPLE[:2] for page in (1, 2)]
    files[1] = answer(tmp_path, study, PEOPLE[0], {sentinel.id: wrong}, 2)
    votes = collect(files, study)
    assert votes.failed == {PEOPLE[0]: 1}
    assert votes.participants == {PEOPLE[1]}
    assert votes.total.sum() == len(study.pages[1]) + len(study.pages[2]) - 8  # of sentinels

    left_out = answer(tmp_path, study, PEOPLE[2], "same", answers={study.pages[1][0].id: "same"})
    assert collect([left_out], study).failed == {PEOPLE[2]: 4 - (study.pages[1][0].sentinel == "same")}


def test_a_participant_counts_once(study: Study, tmp_path: Path) -> None:
    item = next(q.id for q in study.pages[1] if q.sentinel is None)
    place = list(study.asked).index(item)
    first = answer(tmp_path, study, PEOPLE[0], {item: "same"})
    copy = answer(tmp_path, study, PEOPLE[0], {item: "same"})
    votes = collect([first, copy], study)
    assert (votes.counts[place].tolist(), votes.repeated) == ([1, 0], [str(first)])

    later = answer(tmp_path, study, PEOPLE[0], {item: "different"}, revision=2)
    votes = collect([later, first, copy], study)
    assert votes.counts[place].tolist() == [0, 1]
    assert sorted(votes.repeated) == sorted([str(first), str(copy)])


# Labels


def test_three_votes_are_needed_and_nine_if_people_disagree() -> None:
    counts = [(0, 0), (2, 0), (3, 0), (0, 5), (2, 1), (4, 4), (8, 1), (9, 3)]
    found = Votes(np.array(counts))
    assert found.missing().tolist() == [3, 1, 0, 0, 6, 1, 0, 0]
    assert found.shares()[1:].tolist() == pytest.approx([1, 1, 0, 2 / 3, 0.5, 8 / 9, 0.75])
    assert np.isnan(found.shares()[0])


@pytest.mark.parametrize("task", ["pairs", "triplets"])
def test_the_table_holds_shares_of_votes(data: Manifest, tmp_path: Path, task: Any) -> None:
    study = made(data, task, per_page=30)
    choices = ("same", "different") if task == "pairs" else ("left", "right")
    items = list(study.asked)
    ballots = {item: k % 5 for k, item in enumerate(items)}  # so many of four people choose the first
    ballots[items[0]] = -1
    files = []
    for n, person in enumerate(PEOPLE[:4]):
        own = {item: choices[0] if n < many else choices[1] for item, many in ballots.items() if many >= 0}
        files.append(answer(tmp_path, study, person, own))
    votes = collect(files, study)
    assert not votes.failed
    made_table = table(study, votes)
    made_table.write(tmp_path / "labels.csv")
    again = read(tmp_path / "labels.csv")
    assert set(again.column("group")) == set(items[1:])
    for row in again:
        share = ballots[row.group or ""] / 4
        label = {"anchor": None, "candidate": share, "left": share, "right": 1 - share}[row.slot or ""]
        assert row.label == label
    assert set(made_table.column("x_votes")) == {4}
    assert set(made_table.column("x_agreement")) == {0.5, 0.75, 1.0}
    with pytest.raises(ValueError, match="no question has 3 votes yet: 0 votes on 20"):
        table(study, collect([], study))


# Models against people


def labeled(data: Manifest, shares: list[float | None]) -> Manifest:
    """Pairs of subject 0's first image with other images, labeled."""
    rows = [row for k in range(len(shares)) for row in (4 * (k % 12), (4 * (k % 12) + 4 * (k % 3) + 1) % 48)]
    label = [x for share in shares for x in (None, share)]
    return data.take(rows).replace(
        id=[f"{k // 2}/{k % 2}" for k in range(len(rows))], group=[str(k // 2) for k in range(len(rows))],
        slot=["anchor", "candidate"] * len(shares), label=label,
    )  # fmt: skip


SHARES: list[float | None] = [1, 0.8, 0.79, 0.5, 0.2, 0.21, 0, 1, 0.9, 0.1, 0, 0.4]
SCORES = np.random.default_rng(3).permutation(np.r_[np.linspace(0, 1, 11), 0.5])


def judge(data: Manifest, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([SCORES[int(str(data.column("group")[row])) % 12] for row in b])


@pytest.mark.parametrize("undecided", ["drop", "different"])
def test_a_model_is_measured_against_labels_and_shares(data: Manifest, undecided: Any) -> None:
    [result] = run(labeled(data, SHARES), {"m": Scripted(judge)}, PLAIN, StudyOptions(undecided=undecided))
    found = {k: (v.value, v.count) for k, v in values(result, task="pairs").items()}
    share = np.array(SHARES, dtype=float)
    kept = np.array([x >= 0.8 or x <= 0.2 or undecided == "different" for x in SHARES if x is not None])
    same = share >= 0.8
    assert kept.sum() == (8 if undecided == "drop" else 12)
    assert found["AP"] == (pytest.approx(average_precision_score(same[kept], SCORES[kept])), kept.sum())
    assert found["AUC"] == (pytest.approx(roc_auc_score(same[kept], SCORES[kept])), kept.sum())
    assert found["Spearman"] == (pytest.approx(stats.spearmanr(SCORES, share).statistic), 12)
    assert found["Kendall"] == (pytest.approx(stats.kendalltau(SCORES, share).statistic), 12)
    [note] = [n for n in result.notes if "4 of 12 pairs" in n]
    assert ("count as different" in note) == (undecided == "different")
    assert len(result.items["pairs"]["score"]) == kept.sum()
    assert result.items["votes"]["share"] == SHARES


def test_2afc_is_the_share_of_agreed_triplets_with_peoples_choice(data: Manifest) -> None:
    shares = [1.0, 0.0, 0.9, 0.6, 0.1, 0.8]
    rows = [row for k in range(6) for row in (4 * k, 4 * k + 1, 4 * k + 6)]
    triplets = data.take(rows).replace(
        id=[str(k) for k in range(18)], group=[str(k // 3) for k in range(18)],
        slot=["anchor", "left", "right"] * 6, label=[x for p in shares for x in (None, p, 1 - p)],
    )  # fmt: skip
    margin = np.array([0.1, -0.1, -0.1, 0.3, 0.2, 0.0])  # left less right: right, right, wrong, undecided, wrong, a tie

    def scores(data: Manifest, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        left = np.array([data.column("slot")[row] == "left" for row in b])
        return np.where(left, margin / 2, -margin / 2)

    [result] = run(triplets, {"m": Scripted(scores)}, PLAIN)
    value = values(result, task="triplets")["2AFC"]
    assert (value.value, value.count) == (2 / 5, 5)
    nights = triplets.replace(identity=None)  # whose images have no identities
    assert values(run(nights, {"m": Scripted(scores)}, PLAIN)[0], task="triplets")["2AFC"].value == 2 / 5
    assert result.items["triplets"]["margin"] == pytest.approx([0.1, 0.1, -0.1, 0.3, -0.2, 0])


def test_pairs_without_an_answer_are_left_out(data: Manifest) -> None:
    def silent(data: Manifest, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = judge(data, a, b)
        found[:2] = np.nan
        return found

    [result] = run(labeled(data, SHARES), {"m": Scripted(silent)}, PLAIN)
    assert values(result, task="pairs")["Spearman"].count == 10
    assert "2 of 12 pairs have no answer and are left out" in result.notes
    with pytest.raises(ValueError, match="none of 12 has an answer"):
        run(labeled(data, SHARES), {"m": Scripted(lambda d, a, b: np.full(len(a), np.nan))}, PLAIN)


def test_intervals_draw_identities(data: Manifest) -> None:
    [result] = run(labeled(data, SHARES * 3), {"m": Scripted(judge)}, EvalSettings(bootstrap=40))
    found = values(result, task="pairs")
    assert all(v.low is not None and v.high is not None and v.low < v.value < v.high for v in found.values())
    pairs = np.array([[0, 5], [1, 2], [4, 9]])
    assert (owners(data, pairs)[1, 0] == owners(data, pairs)[1, 1]).all()
    assert owners(data, pairs)[0, 1] == owners(data, pairs)[2, 0]
    unknown = data.replace(identity=[None, *data.column("identity")[1:5], None, *data.column("identity")[6:]])
    (a, b), *_ = owners(unknown, pairs)
    assert a == b  # both images are of unknown identity: they count together
    assert owners(unknown, np.array([[0, 1, 9], [4, 5, 9]])).shape == (2,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "no labeled pairs or triplets"),
        ({"slot": "candidate"}, "a second candidate of group '0'"),
        ({"label": 1.5}, "row 2: label 1.5 is not a share of votes"),
    ],
)
def test_data_without_labels_is_refused(data: Manifest, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(labeled(data, [1, 0]).replace(**change), {"m": Scripted(judge)}, PLAIN)


# The command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(cli.main, capsys, "study")


def test_from_photos_to_a_table(data: Manifest, tmp_path: Path, command: Runner) -> None:
    pytest.importorskip("jinja2")
    data.write(tmp_path / "data.parquet")
    built = ["build", "--data", tmp_path / "data.parquet", "--out", tmp_path / "study", "--count", 16, "--per-page", 9]
    out = command.prints("16 pairs and 14 sentinels on 2 pages", *built, "--title", NASTY, "--side", 40)
    assert str(tmp_path / "study" / "page-2.html") in out
    assert command(*built, "--title", NASTY, "--side", 40) == 0  # the same study again
    command.says("holds another study", *built, "--seed", 5)

    study = read_study(tmp_path / "study")
    answers = tmp_path / "answers"
    answers.mkdir()
    odd = next(iter(study.asked))
    identity = study.items.column("identity")
    truth = {
        q.id: "same" if identity[q.rows[0]] == identity[q.rows[1]] else "different"
        for page in study.pages.values() for q in page if not q.sentinel
    }  # fmt: skip
    other = {"same": "different", "different": "same"}[truth[odd]]
    for page in (1, 2):
        for person in PEOPLE[:3]:
            answer(answers, study, person, {**truth, odd: other if person == PEOPLE[0] else truth[odd]}, page)
    (answers / "note.json").write_text("hello")
    given = ["collect", answers, "--study", tmp_path / "study", "--out", tmp_path / "labels.parquet"]
    status, out, err = command.all(*given)
    assert status == 0
    assert "7 files, 1 of them left out; 3 participants count, 0 missed a sentinel" in out
    assert "16 of 16 pairs have votes, 3.00 on average (3 to 3); agreement 0.979" in out
    assert "1 pairs need 6 more votes" in out
    assert f"refused {str(answers / 'note.json')!r}: Expecting value" in err

    for person in PEOPLE[3:9]:  # asked in addition
        answer(answers, study, person, {**truth}, 1)
        answer(answers, study, person, {**truth}, 2)
    assert "need" not in command.prints("8 the same, 8 different, 0 undecided", *given)

    measured = ["--data", tmp_path / "labels.parquet", "--model", "hsv", "--bootstrap", 20, "--device", "cpu"]
    out = command.prints("Spearman", *measured, "--format", "csv")
    [auc] = [line.split(",") for line in out.splitlines() if ",AUC," in line]
    assert 0 <= float(auc[4]) <= 1


def test_the_pages_hold_neither_names_nor_answers(data: Manifest, tmp_path: Path, command: Runner) -> None:
    pytest.importorskip("jinja2")
    data.write(tmp_path / "data.parquet")
    given = ["build", "--data", tmp_path / "data.parquet", "--out", tmp_path / "study", "--count", 9, "--title", NASTY]
    assert command(*given, "--side", 24) == 0
    page = (tmp_path / "study" / "page-1.html").read_text(encoding="utf-8")
    text = re.sub(r"data:image/\w+;base64,[\w+/=]+", "", page)
    for secret in ("secret", "sentinel", "identity", "distractor", *set(data.column("identity")), str(tmp_path)):
        assert not re.search(rf"\b{re.escape(secret)}\b", text), secret
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;" in text
    assert " ".join(INDIVIDUAL.split()) in text
    found = json.loads(re.findall(r'<script type="application/json" id="record">(.*?)</script>', page, re.S)[0])
    assert sorted(found) == ["page", "pictures", "questions", "study", "task"]
    assert all(sorted(q) == ["id", "images"] for q in found["questions"])
    assert [q["id"] for q in found["questions"]] == sorted(q["id"] for q in found["questions"])
    sizes = {size_of(uri) for uri in found["pictures"]}
    assert max(max(size) for size in sizes) == 24
    study = read_study(tmp_path / "study")
    for q, shown in zip(study.pages[1], found["questions"], strict=True):
        assert q.id == shown["id"]
        assert len(set(shown["images"])) == 2  # a sentinel shows a part of the image it repeats


def size_of(uri: str) -> tuple[int, int]:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "test"], "no split 'test'"),
        (["--task", "triplets", "--data", "LONE"], "no identity has two images"),
        (["--data", "NONE"], "there is nothing to ask"),
        (["--data", "nowhere"], "nowhere: no such file or folder"),
    ],
)
def test_what_cannot_be_built_is_said(
    data: Manifest, tmp_path: Path, words: list[str], message: str, command: Runner
) -> None:
    data.write(tmp_path / "data.parquet")
    data.filter(id=("0/0", "1/0", "2/0", "3/0")).write(tmp_path / "LONE.parquet")
    data.replace(identity=None).write(tmp_path / "NONE.parquet")
    words = [str(tmp_path / f"{w}.parquet") if w.isupper() else w for w in words]
    command.says(message, "build", "--data", tmp_path / "data.parquet", "--out", tmp_path / "study", *words)
    assert not (tmp_path / "study").exists()


def test_unreadable_images_are_all_named_before_anything_is_written(
    data: Manifest, tmp_path: Path, command: Runner
) -> None:
    bad = broken(tmp_path)
    paths = [str(bad) if k in (0, 4) else str(data.root / p) for k, p in enumerate(data.column("path"))]
    rows = data.replace(path=paths, group=None).take([0, 1, 4, 5])
    grouped = rows.replace(group=["g", "g", "h", "h"], slot=["anchor", "candidate"] * 2)
    grouped.write(tmp_path / "data.parquet")
    given = ["build", "--data", tmp_path / "data.parquet", "--out", tmp_path / "study", "--sentinels", 0]
    command.says("broken.png", *given)
    assert not list((tmp_path / "study").glob("*"))
    grouped.replace(path=["no1.png", "no2.png", *paths[1:3]]).write(tmp_path / "data.parquet")
    err = command.says("2 images cannot be used", *given)
    assert "no1.png" in err
    assert "no2.png" in err
