"""Extraction: what is read from texts, and that nothing is read twice or lost."""

import dataclasses
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisrqa import cli
from bisrqa.chat import ServerError
from bisrqa.config import ExtractionConfig
from bisrqa.data.records import Chunk, Question, Triple
from bisrqa.extraction import Reader, build
from bisrqa.extraction.base import Extraction
from bisrqa.extraction.precomputed import Precomputed
from bisrqa.extraction.store import BudgetSpent, Store
from bisrqa.extraction.syntax import Syntax
from bisrqa.extraction.triples import parse


def chunk(text: str, title: str = "Ada Blom", paragraph: int = 0, start: int = 0) -> Chunk:
    return Chunk(title, text, paragraph, start, start + 1)


# Replies


def test_a_reply_is_tidied_and_what_is_made_up_is_left_out():
    rows = [
        {"head": " Ada\nBlom ", "relation": "born in", "tail": "Bergen"},
        {"head": "Ada Blom", "relation": "born in", "tail": "Bergen"},
        {"head": "Ada Blom", "relation": "wrote", "tail": "The Lamp"},  # not in the text
        {"head": "Ada", "relation": "", "tail": "Bergen"},
        {"head": "Ada", "relation": "r" * 200, "tail": "Bergen"},
    ]
    read = parse(json.dumps({"triples": rows}), chunk("She was born in Bergen."), 7, 3)
    assert read.triples == (Triple("Ada Blom", "born in", "Bergen"),)
    assert read.entities == ("Ada Blom", "Bergen")
    assert (read.prompt_tokens, read.reply_tokens, read.bad_reply) == (7, 3, None)


@pytest.mark.parametrize(
    "reply",
    ["", "no", '{"triples": [{"head": "a"', '{"triples": 3}', "[]", "null",
     '{"triples": [["a", "b", "c"]]}', '{"triples": [{"head": 1, "relation": "r", "tail": "t"}]}'],
)  # fmt: skip
def test_a_malformed_reply_is_kept_as_it_is(reply):
    read = parse(reply, chunk("x"))
    assert read.bad_reply == reply
    assert read.triples == ()


@given(st.text(max_size=60))
def test_no_reply_breaks_anything(reply):
    assert isinstance(parse(reply, chunk("x")), Extraction)


# The store


class Counting:
    """An extractor that says what it was asked, and can be made to fail."""

    identity = "counting/1"
    cached = True

    def __init__(self, fail_at: int | None = None, bad: str = "?"):
        self.asked: list[str] = []
        self.fail_at, self.bad = fail_at, bad

    def __call__(self, chunks):
        if self.fail_at is not None and len(self.asked) >= self.fail_at:
            raise ServerError("gone")
        self.asked += [c.text for c in chunks]
        return [
            Extraction(bad_reply="{oops", prompt_tokens=5, reply_tokens=1)
            if self.bad in c.text
            else Extraction(triples=(Triple(c.text, "r", "t"),), entities=(c.text,),
                            prompt_tokens=5, reply_tokens=2)
            for c in chunks
        ]  # fmt: skip


CONFIG = ExtractionConfig(method="llm", batch_size=2)


def test_each_text_is_read_once_and_kept(tmp_path: Path):
    chunks = [chunk("a"), chunk("b"), chunk("a", paragraph=3), chunk("c")]
    first = Counting()
    found, report = Store(first, tmp_path)(chunks, CONFIG)
    assert first.asked == ["a", "b", "c"]
    assert [e.triples[0].head for e in found] == ["a", "b", "a", "c"]
    assert (report.chunks, report.distinct, report.cached, report.extracted) == (4, 3, 0, 3)
    assert (report.prompt_tokens, report.reply_tokens) == (15, 6)
    again = Counting()
    same, report = Store(again, tmp_path)([*chunks, chunk("d")], CONFIG)
    assert again.asked == ["d"]
    assert same[:4] == found
    assert (report.cached, report.extracted, report.prompt_tokens) == (3, 1, 5)


def test_another_identity_is_another_store(tmp_path: Path):
    Store(Counting(), tmp_path)([chunk("a")], CONFIG)
    other = Counting()
    other.identity = "counting/2"
    Store(other, tmp_path)([chunk("a")], CONFIG)
    assert other.asked == ["a"]


def test_a_run_that_breaks_goes_on_without_paying_twice(tmp_path: Path):
    chunks = [chunk(str(i)) for i in range(7)]
    with pytest.raises(ServerError):
        Store(Counting(fail_at=4), tmp_path)(chunks, CONFIG)
    rest = Counting()
    found, _ = Store(rest, tmp_path)(chunks, CONFIG)
    assert rest.asked == ["4", "5", "6"]
    assert [e.triples[0].head for e in found] == [str(i) for i in range(7)]


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_half_a_line_is_cut_off_and_read_again(tmp_path: Path, caplog, cut):
    store = Store(Counting(), tmp_path)
    store([chunk("a"), chunk("b")], CONFIG)
    file = store.folder / "extractions.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    again = Counting()
    found, _ = Store(again, tmp_path)([chunk("a"), chunk("b")], CONFIG)
    assert again.asked == ["b"]
    assert [e.triples[0].head for e in found] == ["a", "b"]
    assert "cut off" in caplog.text
    assert len(file.read_text("utf8").splitlines()) == 2


def test_a_damaged_line_is_named(tmp_path: Path):
    store = Store(Counting(), tmp_path)
    store([chunk("a")], CONFIG)
    file = store.folder / "extractions.jsonl"
    file.write_text("{}\n" + file.read_text("utf8"), "utf8")
    with pytest.raises(ValueError, match=r"line 1 .* is damaged"):
        Store(Counting(), tmp_path)([chunk("a")], CONFIG)


def test_bad_replies_go_to_a_file_and_are_asked_again_only_when_told(tmp_path: Path, caplog):
    chunks = [chunk("fine"), chunk("what?")]
    store = Store(Counting(), tmp_path)
    found, report = store(chunks, CONFIG)
    assert found[1].bad_reply == "{oops"
    assert report.bad_replies == 1
    assert "1 of 2 chunks" in caplog.text
    (row,) = map(json.loads, (store.folder / "bad_replies.jsonl").read_text("utf8").splitlines())
    assert (row["text"], row["reply"]) == ("Ada Blom: what?", "{oops")
    quiet = Counting()
    _, report = Store(quiet, tmp_path)(chunks, CONFIG)
    assert (quiet.asked, report.bad_replies) == ([], 1)
    better = Counting(bad="!")
    found, report = Store(better, tmp_path)(chunks, dataclasses.replace(CONFIG, retry_bad=True))
    assert (better.asked, report.bad_replies) == (["what?"], 0)
    assert found[1].triples


def test_a_budget_ends_a_run_and_the_next_goes_on(tmp_path: Path):
    chunks = [chunk(str(i)) for i in range(6)]
    small = dataclasses.replace(CONFIG, max_tokens=20)
    one = Counting()
    with pytest.raises(BudgetSpent, match=r"max_tokens 20 is spent: 2 chunks are left"):
        Store(one, tmp_path)(chunks, small)
    assert one.asked == ["0", "1", "2", "3"]
    two = Counting()
    Store(two, tmp_path)(chunks, small)
    assert two.asked == ["4", "5"]
    with pytest.raises(BudgetSpent, match="max_seconds"):
        Store(Counting(), tmp_path)([chunk("x")], dataclasses.replace(CONFIG, max_seconds=1e-9))


def test_two_at_once_read_nothing_twice(tmp_path: Path):
    chunks = [chunk(str(i)) for i in range(40)]
    readers = [Counting(), Counting()]
    threads = [
        threading.Thread(target=Store(reader, tmp_path), args=(chunks, CONFIG))
        for reader in readers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(readers[0].asked + readers[1].asked, key=int) == [c.text for c in chunks]


def test_an_estimate_is_given_early(tmp_path: Path, caplog):
    caplog.set_level(logging.INFO)
    Store(Counting(), tmp_path)([chunk(str(i)) for i in range(6)], CONFIG)
    assert "extracting from 6 chunks (0 are known)" in caplog.text
    assert "by the first 2 chunks" in caplog.text
    assert "42 tokens" in caplog.text  # 3 times (5 + 2) for 2 chunks


# Precomputed


def lines(file: Path, *rows) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf8")
    return file


def test_kg2rag_triples_by_sentence(tmp_path: Path):
    rows = {"title": "Ada Blom", "triples": {"1": [["Ada", "born in", "Bergen"], ["x", "y"]]}}
    extractor = Precomputed(lines(tmp_path / "t.jsonl", rows))
    found = extractor([chunk("One."), chunk("Two.", start=1), chunk("Three.", title="Bo")])
    assert [len(e.triples) for e in found] == [0, 1, 0]
    assert (extractor.asked, extractor.lacking) == (3, 1)


def test_openie_triples_go_to_the_sentence_with_most_of_their_words(tmp_path: Path):
    row = {
        "title": "Ada Blom", "text": "Ada Blom wrote. She lived in Bergen.",
        "extracted_triples": [["Ada Blom", "lived in", "Bergen"], ["Ada Blom", "is", "author"]],
    }  # fmt: skip
    extractor = Precomputed(lines(tmp_path / "t.jsonl", row))
    chunks = [chunk("Ada Blom wrote."), chunk("She lived in Bergen.", start=1)]
    found = extractor([*chunks, chunk("Another paragraph.", paragraph=1)])
    assert [[t.tail for t in e.triples] for e in found] == [["author"], ["Bergen"], []]


@pytest.mark.parametrize(
    "row",
    ["x", [1], {"title": "A"}, {"text": "x", "triples": []}, {"title": "A", "triples": {"x": []}}],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, row):
    fine = {"title": "A", "triples": {"0": []}}
    with pytest.raises(ValueError, match=r"t\.jsonl:2"):
        Precomputed(lines(tmp_path / "t.jsonl", fine, row))


def test_real_files(sample_data: Path):
    by_sentence = Precomputed(sample_data / "hotpotqa_mini" / "kg2rag_llama3_triples.jsonl.gz")
    (found,) = by_sentence([chunk("any", title="10th Continental Regiment")])
    assert found.triples == (Triple("The 10th Continental Regiment", "establishment date", "1776"),)
    by_paragraph = Precomputed(sample_data / "musique_mini" / "train_openie_gpt35.jsonl.gz")
    title = "Journal of Mathematical Physics"
    found, _ = by_paragraph(
        [chunk(f"The {title} is a peer-reviewed journal published monthly", title=title),
         chunk("devoted to papers in mathematical physics", title=title, start=1)]
    )  # fmt: skip
    assert Triple(title, "published by", "American Institute of Physics") in found.triples


# Syntax


@pytest.fixture(scope="module")
def syntax() -> Syntax:
    return Syntax()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She was born in Bergen in 1901.", [("Ada Blom", "born in", "Bergen"),
                                             ("Ada Blom", "born in", "1901")]),
        ("The Lamp was directed by Nora Vik.", [("Lamp", "directed by", "Nora Vik")]),
        ("Paris is the capital of France.", [("Paris", "is capital of", "France")]),
        ("Tom Hanks, who lives in California, won two awards.",
         [("Tom Hanks", "lives in", "California")]),
        ("Albert Einstein and Marie Curie visited Geneva.",
         [("Albert Einstein", "visited", "Geneva"), ("Marie Curie", "visited", "Geneva")]),
        ("The company was founded in 1999.", [("Ada Blom", "founded in", "1999")]),
    ],
)  # fmt: skip
def test_what_a_sentence_says(syntax, text, expected):
    (found,) = syntax([chunk(text)])
    said = [(t.head, t.relation.removeprefix("was "), t.tail) for t in found.triples]
    for triple in expected:
        assert triple in [(h.removeprefix("The "), r, t) for h, r, t in said], said


def test_names_are_kept_besides_triples(syntax):
    (found,) = syntax([chunk("In Oslo.")])
    assert found.triples == ()
    assert "Oslo" in found.entities
    assert syntax([]) == []
    assert syntax([chunk("...")])[0].triples == ()


def test_questions_get_triples_and_names_with_their_chunks(tmp_path: Path):
    reader = Reader(ExtractionConfig(method="syntax"), tmp_path)
    chunks = (chunk("It is red."), chunk("She was born in Bergen.", start=1))
    asked = Question(
        id="q", question="?", answers=("x",), topics=(), graph=(Triple("a", "r", "b"),),
        chunks=chunks, sources=(0,),
    )  # fmt: skip
    (read,) = reader.read([asked])
    assert read.graph[0] == Triple("a", "r", "b")
    born = read.graph.index(Triple("Ada Blom", "was born in", "Bergen"))
    assert read.sources[born] == 1
    assert (1, "Bergen") in read.named


# A server


class Handler(BaseHTTPRequestHandler):
    """Imitates the protocol; ``server.behave`` says how."""

    def log_message(self, *_):
        pass

    def send(self, status: int, body: dict) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self.send(200, {"object": "list", "data": [{"id": "m", "object": "model", "created": 0,
                                                    "owned_by": "x"}]})  # fmt: skip

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.requests.append(body)
        status, text = server.behave(body, len(server.requests))
        if status != 200:
            self.send(status, {"error": {"message": text}})
            return
        choice = {"index": 0, "finish_reason": "stop",
                  "message": {"role": "assistant", "content": text}}  # fmt: skip
        usage = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
        self.send(200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m",
                        "choices": [choice], "usage": usage})  # fmt: skip


def reply(body: dict) -> str:
    text = body["messages"][-1]["content"].partition(": ")[2]
    return json.dumps({"triples": [{"head": text, "relation": "r", "tail": text}]})


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.requests = []
    made.behave = lambda body, _: (200, reply(body))
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def config_of(server, **changes) -> ExtractionConfig:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    return ExtractionConfig(
        **({"method": "server", "model": "m", "url": url, "batch_size": 2, "retries": 1,
            "concurrency": 2, "timeout_s": 5.0} | changes)
    )  # fmt: skip


CHUNKS = [chunk(f"text {i}") for i in range(5)]


def test_a_server_is_asked_with_the_schema(server, tmp_path: Path):
    found, report = Reader(config_of(server), tmp_path)(CHUNKS)
    assert [e.triples[0].head for e in found] == [c.text for c in CHUNKS]
    assert (report.prompt_tokens, report.reply_tokens) == (55, 20)
    assert all(r["response_format"]["type"] == "json_schema" for r in server.requests)
    assert all(r["temperature"] == 0 for r in server.requests)


def test_a_server_without_structured_output_is_asked_without(server, tmp_path: Path, caplog):
    def behave(body, _):
        return (400, "unknown response_format") if "response_format" in body else (200, reply(body))

    server.behave = behave
    found, _ = Reader(config_of(server), tmp_path)(CHUNKS)
    assert [e.triples[0].head for e in found] == [c.text for c in CHUNKS]
    assert caplog.text.count("no structured output") == 1
    assert sum("response_format" in r for r in server.requests) == 1


def test_a_malformed_reply_of_a_server_is_counted(server, tmp_path: Path):
    server.behave = lambda body, _: (200, "Sure! Here: {" if "3" in str(body["messages"][-1]) else
                                     reply(body))  # fmt: skip
    found, report = Reader(config_of(server), tmp_path)(CHUNKS)
    assert report.bad_replies == 1
    assert found[3].bad_reply == "Sure! Here: {"


def test_a_failing_server_is_tried_again(server, tmp_path: Path):
    failed: set[str] = set()

    def behave(body, _):
        text = body["messages"][-1]["content"]
        if text in failed or body["max_tokens"] == 1:
            return 200, reply(body)
        failed.add(text)
        return 503, "busy"

    server.behave = behave
    found, _ = Reader(config_of(server), tmp_path)(CHUNKS[:2])
    assert [len(e.triples) for e in found] == [1, 1]


def test_a_server_that_dies_half_way_is_gone_on_with(server, tmp_path: Path):
    config = config_of(server, retries=0, concurrency=1)
    server.behave = lambda body, n: (200, reply(body)) if n <= 3 else (500, "dead")
    with pytest.raises(ServerError, match="stopped answering"):
        Reader(config, tmp_path)(CHUNKS)
    server.behave = lambda body, _: (200, reply(body))
    before = len(server.requests)
    Reader(config, tmp_path)(CHUNKS)
    asked = [r["messages"][-1]["content"] for r in server.requests[before:] if r["max_tokens"] > 1]
    assert asked == [c.words for c in CHUNKS[2:]]  # the first two were saved


def test_a_server_that_is_slow_is_not_waited_for(server, tmp_path: Path):
    release = threading.Event()

    def behave(body, _):
        release.wait(10)
        return 200, reply(body)

    server.behave = behave
    with pytest.raises(ServerError, match="stopped answering"):
        Reader(config_of(server, timeout_s=0.2, retries=0), tmp_path)(CHUNKS[:1])
    release.set()


def test_no_server_is_said_before_any_work(tmp_path: Path):
    config = ExtractionConfig(method="server", url="http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(ServerError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        Reader(config, tmp_path)
    assert not list(tmp_path.iterdir())


# The command


def test_extract_a_folder_and_use_what_it_wrote(tmp_path: Path, capsys):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "Ada Blom.txt").write_text("She was born in Bergen. She wrote plays.", "utf8")
    out = tmp_path / "t.jsonl"
    words = ["extract", str(texts), "--out", str(out), f"--cache_dir={tmp_path}/cache"]
    assert cli.main([*words, "--extraction.method=syntax"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["chunks"], report["cached"], report["extracted"]) == (2, 0, 2)
    rows = [json.loads(line) for line in out.read_text("utf8").splitlines()]
    assert rows[0]["triples"] == [["Ada Blom", "was born in", "Bergen"]]
    assert cli.main([*words, "--extraction.method=syntax"]) == 0
    assert json.loads(capsys.readouterr().out)["cached"] == 2
    again = build(ExtractionConfig(method="precomputed", path=str(out)), tmp_path)
    (found, _) = again([chunk("She was born in Bergen."), chunk("She wrote plays.", start=1)])
    assert found.triples == (Triple("Ada Blom", "was born in", "Bergen"),)


def test_mistakes_of_the_command_are_named(tmp_path: Path, capsys, caplog):
    (tmp_path / "a.txt").write_text("One.", "utf8")
    texts, out = str(tmp_path / "a.txt"), str(tmp_path / "t.jsonl")
    for words, said in (
        ([texts, "--out", out], "extraction.method is none"),
        ([texts, "--out", "t.csv", "--extraction.method=syntax"], "ends in .jsonl"),
        (["absent", "--out", out, "--extraction.method=syntax"], "expected a file or folder"),
        (
            [texts, "--out", out, "--extraction.method=precomputed"],
            "extraction.path must be a file",
        ),
    ):
        assert cli.main(["extract", *words]) != 0
        assert said in capsys.readouterr().err + caplog.text
