"""The script for a big GPU runs here in a tiny shape, so that it runs there at first try."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_script_for_a_gpu_runs_in_a_tiny_shape(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    words = ["--tiny", "--tokens", "32", "--repeats", "1", "--many", "6", "--json", str(out)]
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), *words, "--checkpointing"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "seconds a question" in done.stdout
    rows = {row["what"]: row for row in json.loads(out.read_text())}
    assert rows["bisrqa, step"]["seconds"] > 0
    assert rows["G-Retriever's step"]["peak_gb"] > 0
    assert rows["bisrqa, answers, batch 6"]["questions_a_second"] > 0
