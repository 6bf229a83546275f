"""Judges: requests, valid answers, and every kind of server failure."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.cli.eval import main as eval_command
from idmetric.data.manifest import ManifestError, write
from idmetric.evaluate.protocols.common.scorers import EvalSettings as Protocol
from idmetric.evaluate.protocols.common.scorers import bind
from idmetric.evaluate.protocols.judges import judge as module
from idmetric.evaluate.protocols.judges.endpoint import Endpoint
from idmetric.evaluate.protocols.judges.judge import ANSWERS, Judge
from idmetric.evaluate.protocols.judges.questions import QUESTIONS
from idmetric.evaluate.protocols.judges.scorer import JudgeModel, open_judge
from idmetric.metric.errors import RequestError
from idmetric.stream import Look
from tests.chat_server import DROPS, Act, ChatServer, fails, says, serving
from tests.table_parts import a_row, a_table

pytest.importorskip("openai")

GOOD = {"match_cues": ["dent"], "conflict_cues": [], "background_used": False, "confidence": "high", "score": 8}
QUICK = {"side": 32, "concurrency": 1}
SECRET = "sk-very-secret-0123456789"


def image(value: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.new("RGB", size, (value % 256, 90, 200 - value % 100))


def pairs(count: int) -> list[tuple[Image.Image, Image.Image]]:
    return [(image(k), image(k + 100)) for k in range(count)]


def judge(server: ChatServer, **options: Any) -> Judge:
    return Judge(Endpoint(server.url, "fake"), **{**QUICK, **options})


# Requests


def test_a_question_holds_the_prompt_and_two_bounded_images_in_order() -> None:
    wide = image(10, (400, 100))
    wide.getexif()[315] = "the author"
    with serving(says(GOOD)) as server:
        [verdict] = judge(server).ask([(wide, image(20, (10, 20)))])
    assert verdict.similarity == 0.8  # NearID, section 0.E.11: score / 10
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["seed"]) == ("fake", 0.0, 512, 0)
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "text", "image_url", "text", "image_url"]
    assert content[0]["text"] == QUESTIONS["evidence"].prompt
    assert (content[1]["text"], content[3]["text"]) == ("Image A:", "Image B:")
    sizes = []
    for part in (content[2], content[4]):
        kind, data = part["image_url"]["url"].split(",", 1)
        assert kind == "data:image/jpeg;base64"
        sent = Image.open(io.BytesIO(base64.b64decode(data)))
        assert not sent.getexif()
        sizes.append(sent.size)
    assert sizes == [(32, 8), (10, 20)]  # scaled down to `side`, never up


def test_fields_of_the_request_can_be_changed_and_taken_away() -> None:
    extra = {"max_tokens": None, "max_completion_tokens": 900, "temperature": None}
    with serving(says(GOOD)) as server:
        Judge(Endpoint(server.url, "fake", extra=extra), **QUICK).ask(pairs(1))
    assert not {"max_tokens", "temperature"} & set(server.bodies[0])
    assert server.bodies[0]["max_completion_tokens"] == 900


def test_the_key_is_sent_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    named = json.dumps({"model": SECRET, "choices": [{"message": {"content": json.dumps(GOOD)}}]}).encode()
    refused = json.dumps({"choices": [{"message": {"content": "", "refusal": f"not for {SECRET}"}}]}).encode()
    acts = [fails(200, named), fails(400, f"your key {SECRET} is fine".encode()), *[fails(200, refused)] * 4]
    with serving(*acts, fails(401, f"bad key {SECRET}".encode())) as server:
        asked = Judge(Endpoint(server.url, "fake", key="MY_KEY"), **QUICK, store=tmp_path)
        verdicts = asked.ask(pairs(3))
        assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
        with pytest.raises(RequestError, match="HTTP 401") as caught:
            asked.ask(pairs(4)[3:])
    [path] = tmp_path.rglob("*.jsonl")
    texts = [str(caught.value), repr(asked.backend), str(verdicts), asked.report(), caplog.text, path.read_text()]
    assert all(SECRET not in text for text in [*texts, str(asked.signature())])
    assert json.loads(path.read_text())["by"] == "***"
    assert "your key *** is fine" in verdicts[1].reason
    assert "refused: not for ***" in verdicts[2].reason


def test_nothing_of_the_environment_is_sent_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Token: {SECRET}")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a server on this machine is reached without it
    with serving(says(GOOD)) as server:
        assert judge(server).ask(pairs(1))[0].similarity == 0.8
    assert "Authorization" not in server.headers[0]
    assert SECRET not in str(server.headers[0])


def test_a_redirect_is_not_followed() -> None:
    with serving(says(GOOD)) as elsewhere, serving(fails(307, Location=f"{elsewhere.url}/chat/completions")) as server:
        with pytest.raises(RequestError, match="HTTP 307"):
            judge(server).ask(pairs(1))
        assert (server.count, elsewhere.count) == (1, 0)


def test_a_missing_key_or_wrong_address_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(says(GOOD)) as server:
        for value, message in (("", "MY_KEY is empty"), ("sk-\u00e9", "no key has")):
            monkeypatch.setenv("MY_KEY", value)
            with pytest.raises(RequestError, match=message):
                Judge(Endpoint(server.url, "fake", key="MY_KEY"), **QUICK).ask(pairs(1))
        assert server.count == 0
    for url in ("api.openai.com/v1", "ftp://x/v1", "https://user:pw@x/v1"):
        with pytest.raises(ValueError, match="not the address"):
            Endpoint(url, "fake")
    with pytest.raises(ValueError, match="unencrypted"):
        Endpoint("http://example.org/v1", "fake", key="MY_KEY")


# Valid answers


def test_fenced_and_thought_out_json_is_an_answer() -> None:
    text = json.dumps(GOOD)
    for said in (text, f"```json\n{text}\n```", f"```\n{text}```\n", f"<think>Both {{have}} dents.</think>\n\n{text}"):
        assert QUESTIONS["evidence"].parse(said) == GOOD
    instance = QUESTIONS["instance"]
    answer = {"same_instance": 1, "confidence": 0.5, "similarity": 0.25}
    assert instance.similarity(instance.parse(json.dumps(answer))) == 0.25


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({**GOOD, "score": 11}), "score is '11', not a number from 0 to 10"),
        (json.dumps({**GOOD, "score": float("nan")}), "number from 0 to 10"),
        (json.dumps({**GOOD, "score": True}), "number from 0 to 10"),
        ("{}", "not a JSON object with the field score"),
        ("[8]", "not a JSON object"),
        (f"Sure! {json.dumps(GOOD)}", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_other_texts_are_no_answer(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        QUESTIONS["evidence"].parse(text)


# Failures


@pytest.mark.parametrize(
    "act",
    [
        says("I think so"),
        says({**GOOD, "score": 12}),
        says(""),
        says(GOOD, finish="length"),
        fails(200, b"<html>"),
        fails(200, b"[]"),
        fails(200, b'{"choices": []}'),
    ],
)
def test_an_unreadable_answer_is_asked_again_with_another_seed(act: Act) -> None:
    with serving(act, says(GOOD)) as server:
        assert judge(server).ask(pairs(1))[0].similarity == 0.8
    assert [b["temperature"] for b in server.bodies] == [0.0, 0.7]
    assert [b["seed"] for b in server.bodies] == [0, 1]


def test_after_four_unreadable_answers_a_pair_has_no_score_and_all_are_counted() -> None:
    with serving(*[says("?")] * 4, says(GOOD)) as server:
        asked = judge(server)
        first, second = asked.ask(pairs(2))
    assert (first.similarity, second.similarity) == (None, 0.8)
    assert "1 without an answer (such as: unreadable answer: not JSON" in asked.report()
    assert "5 replies, 500 + 100 tokens" in asked.report()


def test_a_full_server_is_given_the_time_it_asks_for() -> None:
    with serving(fails(429, Retry_After="0.3"), says(GOOD)) as server:
        start = time.monotonic()
        assert judge(server).ask(pairs(1))[0].similarity == 0.8
        assert time.monotonic() - start >= 0.3
    assert [b["temperature"] for b in server.bodies] == [0.0, 0.0]  # the question was not at fault


def test_lost_connections_and_slow_replies_are_asked_again() -> None:
    with serving(DROPS, says(GOOD, seconds=0.5), says(GOOD)) as server:
        assert Judge(Endpoint(server.url, "fake", timeout=0.2), **QUICK).ask(pairs(1))[0].similarity == 0.8
        assert server.count == 3


def test_a_failing_server_is_asked_four_times_and_a_refused_request_once() -> None:
    with serving(*[fails(500)] * 4, fails(400, b"image refused"), says(GOOD)) as server:
        asked = judge(server)
        verdicts = asked.ask(pairs(3))
    assert [v.similarity for v in verdicts] == [None, None, 0.8]  # a failure is no score
    assert [v.reason for v in verdicts] == ["HTTP 500: no", "HTTP 400: image refused", ""]
    assert server.count == 6
    assert "2 without an answer (such as: HTTP 500: no); 1 replies" in asked.report()


def test_many_failures_in_a_row_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GIVE_UP_AFTER", 3)
    reason = "3 pairs in a row had no answer, the last because: HTTP 400"
    with serving(says(GOOD), fails(400)) as server, pytest.raises(RequestError, match=reason):
        judge(server).ask(pairs(200))
    assert server.count < 200  # on a busy machine, requests run ahead of their count


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_of_all_questions_stops_the_run_at_once(status: int) -> None:
    with serving(fails(status)) as server, pytest.raises(RequestError, match=f"check address.*HTTP {status}"):
        judge(server).ask(pairs(5))
    assert server.count == 1


# Nothing is paid for twice


def test_a_stopped_run_resumes(tmp_path: Path) -> None:
    with serving(says(GOOD), says({**GOOD, "score": 3}), fails(402), says({**GOOD, "score": 5})) as server:
        with pytest.raises(RequestError, match="HTTP 402"):
            judge(server, store=tmp_path).ask(pairs(5))
        assert server.count == 3
        verdicts = judge(server, store=tmp_path).ask(pairs(5))
        assert server.count == 6
        assert [v.similarity for v in verdicts] == [0.8, 0.3, 0.5, 0.5, 0.5]
        assert [v.stored for v in verdicts] == [True, True, False, False, False]
        again = judge(server, store=tmp_path)
        assert [v.similarity for v in again.ask(pairs(5))] == [0.8, 0.3, 0.5, 0.5, 0.5]
        assert server.count == 6
    assert (again.counts["known"], again.counts["replies"]) == (5, 0)


def test_another_question_or_server_is_asked_again(tmp_path: Path) -> None:
    with serving(says({**GOOD, "similarity": 0.5})) as server:
        a, b = pairs(1)[0]
        judge(server, store=tmp_path).ask([(a, b)])
        others: list[tuple[Judge, Any]] = [
            (Judge(Endpoint(server.url, "other"), **QUICK, store=tmp_path), (a, b)),
            (Judge(Endpoint(f"{server.url}/other", "fake"), **QUICK, store=tmp_path), (a, b)),
            (judge(server, side=16, store=tmp_path), (a, b)),
            (judge(server, max_tokens=90, store=tmp_path), (a, b)),
            (judge(server, question=QUESTIONS["instance"], store=tmp_path), (a, b)),
            (judge(server, store=tmp_path), (b, a)),
            (judge(server, store=tmp_path), (a, image(1))),
        ]
        for k, (asked, pair) in enumerate(others, 2):
            asked.ask([pair])
            assert server.count == k


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path) -> None:
    with serving(says(GOOD)) as server:
        judge(server, store=tmp_path).ask(pairs(1))
        path = tmp_path / ANSWERS
        [whole] = path.read_text().splitlines()
        path.write_text(f"{whole[:50]}\n")
        assert judge(server, store=tmp_path).ask(pairs(1))[0].similarity == 0.8
    assert path.read_text().splitlines() == [whole[:50], whole]


def test_requests_at_a_time_are_bounded_and_pairs_asked_once() -> None:
    with serving(says(GOOD, seconds=0.05)) as server:
        asked = judge(server, concurrency=3)
        seen: list[int] = []
        asked.ask(pairs(6), lambda done, total: seen.append(done))
        verdicts = asked.ask(pairs(6))
    assert server.count == 6
    assert server.most_at_once <= 3
    assert seen == list(range(1, 7))
    assert all(v.stored for v in verdicts)


# In protocols


def test_a_judge_is_a_model_of_protocols_that_scores_pairs(tmp_path: Path) -> None:
    mask = Image.new("L", (40, 30), 0)
    mask.paste(255, (0, 0, 20, 30))
    mask.save(tmp_path / "mask.png")
    rows = []
    for k in range(3):
        image(50 * k).save(tmp_path / f"{k}.png")
        rows.append(a_row(f"i{k}", f"{k}.png", mask="mask.png"))
    manifest = a_table(rows, tmp_path)
    with serving(says(GOOD), *[says("?")] * 4, says({**GOOD, "score": 0})) as server:
        scorer = bind(manifest, {"judge": JudgeModel(judge(server))}, Protocol()).models["judge"]
        scores = scorer.pairs([0, 0, 1, 1], [1, 2, 2, 2])  # the last pair is asked about once
        assert np.isnan(scores[1])  # no answer is not the score 0
        assert scores[[0, 2, 3]].tolist() == [0.8, 0.0, 0.0]
        assert server.count == 6
        with pytest.raises(ValueError, match="a judge compares pairs"):
            scorer.matrix([0, 1], [1, 2])
        assert scorer.signature()["model"] == "judge:fake"
        masked = bind(manifest, {"judge": JudgeModel(judge(server))}, Protocol(look=Look(True)))
        assert masked.models["judge"].read(1).getpixel((30, 5)) == (0, 0, 0)  # type: ignore[attr-defined]
        missing = a_table([*rows, a_row("x", "none.png")], tmp_path)
        with pytest.raises(ManifestError, match=r"none\.png"):
            bind(missing, {"judge": JudgeModel(judge(server))}, Protocol())


def write_pairs(root: Path) -> Path:
    """Three generated images of one reference, with the ratings of two groups."""
    rows = []
    for k in range(4):
        image(60 * k).save(root / f"{k}.png")
    for k in range(1, 4):
        group = f"db/object_00/emu2/{k}_0"
        about = {"prompt": k, "image": 0}
        rows += [
            a_row("db/object_00", "0.png", id=f"{group}/a", group=group, slot="anchor"),
            a_row(None, f"{k}.png", id=f"{group}/c", group=group, slot="candidate", engine="emu2",
                parent="db/object_00", parameters=about),
        ]  # fmt: skip
    for name, ratings in (("group1", (1, 2, 3)), ("group2", (3, 2, 4))):
        folder = root / "ratings" / name
        folder.mkdir(parents=True)
        named = {f"object_00_x-{k}": rating for k, rating in enumerate(ratings, 1)}
        (folder / "emu2-cp.json").write_text(json.dumps(named))
    path = root / "pairs.parquet"
    write(a_table(rows, root), path)
    return path


def test_the_command_takes_a_judge_from_a_file_and_reports_its_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_pairs(tmp_path)
    with serving(says({**GOOD, "score": 2}), says({**GOOD, "score": 9}), says({**GOOD, "score": 5})) as server:
        about = {"url": server.url, "model": "fake", "side": 32, "concurrency": 1}
        (tmp_path / "judge.json").write_text(json.dumps(about))
        command = ["dreambench", "--ratings", str(tmp_path / "ratings"), "--data", str(data)]
        command += ["--model", f"fake=judge:{tmp_path / 'judge.json'}", "--bootstrap", "0"]
        command += ["--out", str(tmp_path / "out"), "--format", "csv"]
        assert eval_command(command) == 0
        said = capsys.readouterr()
        assert eval_command(command) == 0
        again = capsys.readouterr()
        assert server.count == 3  # the answers in --out are not paid for again
    r = [np.corrcoef([2, 9, 5], people)[0, 1] for people in ([1, 2, 3], [3, 2, 4])]
    assert f"dreambench,fake,object,emu2,M-H,{np.mean(r):.4f}"[:-1] in said.out
    assert said.out == again.out
    assert "fake: 3 pairs, 0 of them known, 0 without an answer; 3 replies, 300 + 60 tokens" in said.err
    assert "fake: 3 pairs, 3 of them known, 0 without an answer; 0 replies" in again.err
    assert len((tmp_path / "out" / "judge" / ANSWERS).read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "give "),
        ({"local": "x"}, "give "),
        ({"url": "http://127.0.0.1/v1"}, "model"),
        ({"url": "http://127.0.0.1/v1", "model": "m", "api_key": "sk"}, "argument 'api_key'"),
        ({"url": "http://127.0.0.1/v1", "model": "m", "question": "why"}, "unknown question 'why'"),
        ({"url": "http://127.0.0.1/v1", "model": "m", "side": 0}, "at least 1"),
        ({"url": "127.0.0.1", "model": "m"}, "not the address"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_error(tmp_path: Path, given: Any, reason: str) -> None:
    path = tmp_path / "judge.json"
    path.write_text(json.dumps(given))
    with pytest.raises(RequestError, match=reason) as caught:
        open_judge(path)
    assert str(path) in str(caught.value)


def test_a_file_from_a_stranger_cannot_choose_who_gets_the_images_and_which_variable(tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    about = {"url": "https://judge.example/v1", "model": "m", "key": "OPENAI_API_KEY"}
    path.write_text(json.dumps(about))
    for source in (path, f"{path}@api.openai.com"):
        with pytest.raises(RequestError, match=rf"name it, as in judge:{re.escape(str(path))}@judge\.example"):
            open_judge(source)
    assert open_judge(f"{path}@judge.example").judge.backend.host == "judge.example"
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PATH"):
        path.write_text(json.dumps({**about, "key": name}))
        with pytest.raises(RequestError, match=f"the variable '{name}' is not sent"):
            open_judge(f"{path}@judge.example")
