import dataclasses
from pathlib import Path

import pytest

from bisrqa.config import EncoderConfig, PromptConfig, RunConfig, TrainingConfig, load, to_yaml

ROOT = Path(__file__).parent.parent


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.yaml"
    path.write_text("{}")
    return path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sead: 1", "sead"),
        ("retriever: {topk: 3}", "topk"),
        ("seed: one", "seed"),
        ("training: {epochs: 1.5}", "epochs"),
        ("retriever: {top_k: many}", "top_k"),
        ("prompt: {soft_prompt: 3}", "soft_prompt"),
        ("generator: {mode: qlora}", "mode"),
        ("generator: {lora_targets: q_proj}", "lora_targets"),
        ("head: none", "head"),
    ],
)
def test_an_unknown_key_or_a_wrong_type_is_named(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.yaml(?s:.*){named}"):
        load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", ".."),
        ("name", "a/b"),
        ("data.train_limit", "0"),
        ("embedder.batch_size", "0"),
        ("retriever.node_temperature", "0"),
        ("retriever.relation_temperature", "-1"),
        ("retriever.topic_mass", "1.1"),
        ("retriever.restart", "0"),
        ("retriever.restart", "1"),
        ("retriever.tolerance", "0"),
        ("retriever.max_steps", "0"),
        ("retriever.top_k", "0"),
        ("encoder.hidden", "0"),
        ("encoder.num_heads", "3"),
        ("encoder.num_heads", "0"),
        ("encoder.dropout", "1"),
        ("encoder.soft_tokens", "0"),
        ("prompt.max_prompt_tokens", "0"),
        ("prompt.max_answer_tokens", "-1"),
        ("generator.lora_rank", "0"),
        ("generator.lora_alpha", "0"),
        ("generator.lora_dropout", "-0.1"),
        ("generator.max_new_tokens", "0"),
        ("generator.num_beams", "0"),
        ("training.epochs", "0"),
        ("training.batch_size", "0"),
        ("training.batch_tokens", "0"),
        ("training.eval_every", "0"),
        ("training.learning_rate", "0"),
        ("training.encoder_learning_rate", ".nan"),
        ("training.max_steps", "0"),
        ("training.validation_limit", "0"),
        ("training.patience", "0"),
        ("training.clip", "0"),
        ("training.warmup_ratio", "1"),
        ("training.final_ratio", "2"),
        ("evaluation.batch_tokens", "0"),
        ("evaluation.limit", "0"),
    ],
)
def test_a_nonsense_value_is_named(key: str, value: str, empty: Path) -> None:
    with pytest.raises(ValueError, match=rf"\b{key} must be .*, got"):
        load(empty, [f"--{key}={value}"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--data.source=quickstart", "--data.path=x"], "data.path"),
        (["--data.source=quickstart", "--data.revision=x"], "data.revision"),
        (["--data.source=quickstart", "--data.resplit=x"], "data.resplit"),
        (["--prompt.order=attention", "--prompt.soft_prompt=false"], "prompt.soft_prompt"),
        (["--training.encoder_epochs=1", "--prompt.soft_prompt=false"], "prompt.soft_prompt"),
        (["--training.attention_weight=1", "--prompt.soft_prompt=false"], "prompt.soft_prompt"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    words: list[str], named: str, empty: Path
) -> None:
    with pytest.raises(ValueError, match=rf"\b{named} must be .*, got"):
        load(empty, words)


@pytest.mark.parametrize("value", ["", "3", "[1]"])
def test_a_part_that_is_no_group_of_settings_is_named(value: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"seed: 1\nretriever: {value}")
    with pytest.raises(ValueError, match="retriever must be a group of settings"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.yaml"):
        load(tmp_path / "nowhere.yaml")


def test_an_empty_file_gives_the_defaults_and_they_are_frozen(empty: Path) -> None:
    config = load(empty)
    assert config == RunConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.retriever.top_k = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_the_command_line_beats_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("seed: 5\nretriever: {top_k: 7, restart: 0.3}\ntraining: {patience: null}\n")
    config = load(path, ["--retriever.top_k", "9", "--generator.lora_targets=[q_proj,v_proj]"])
    assert (config.retriever.top_k, config.retriever.restart) == (9, 0.3)
    assert config.generator.lora_targets == ("q_proj", "v_proj")
    everywhere = load(path, ["--generator.lora_targets", "all-linear"])
    assert everywhere.generator.lora_targets == "all-linear"
    assert config.training.patience is None
    assert config.seed == 5
    assert config.encoder == RunConfig().encoder
    assert config.run_dir == Path("checkpoints/run")


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = RunConfig()
    config = dataclasses.replace(
        config,
        name="première course",
        prompt=dataclasses.replace(config.prompt, instruction='Say "no": #1\nor: yes'),
        generator=dataclasses.replace(config.generator, lora_targets=("q_proj",), num_beams=2),
        training=dataclasses.replace(config.training, patience=None, learning_rate=1e-5),
        embedder=dataclasses.replace(config.embedder, question_prompt="query: "),
    )
    path = tmp_path / "saved.yaml"
    path.write_text(to_yaml(config), "utf8")
    assert load(path) == config
    assert to_yaml(config).startswith("name: première course\nseed: 0\n")


@pytest.mark.parametrize("width", [1, 8])
def test_granularity_makes_three_tokens_whatever_else_is_set(width: int, empty: Path) -> None:
    words = [f"--encoder.soft_tokens={width}", "--encoder.pooling"]
    assert load(empty, [*words, "granularity"]).encoder.num_soft_tokens == 3
    assert load(empty, [*words, "queries"]).encoder.num_soft_tokens == width


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs/recipes").glob("*.yaml")]),
    ids=lambda p: p.name,
)
def test_every_config_of_the_repository_loads(path: Path) -> None:
    assert load(path) != RunConfig()


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": PromptConfig(order="attention")},
        {"training": TrainingConfig(encoder_epochs=1)},
        {"training": TrainingConfig(attention_weight=1.0)},
    ],
)
def test_only_maif_has_an_attention_to_go_by(changes):
    for encoder in ("g_retriever", "grag", "prompt_tuning"):
        with pytest.raises(ValueError, match=r"encoder\.kind must be maif with"):
            RunConfig(encoder=EncoderConfig(kind=encoder), **changes)
    RunConfig(**changes)
