"""What is saved comes back whole, and anything else is refused with its reason."""

import json

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from bisrqa import checkpoint


def trained(settings, seed=0):
    """A model whose trained weights are all different from the initial ones."""
    model = tiny.model(settings, seed)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


def replies_and_loss(model):
    batch = model.prepare(tiny.examples())
    return model.generate(batch).texts, model(batch, model.targets(batch)).item()


@pytest.mark.parametrize(
    ("changes", "files"),
    [
        ({}, {"encoder.safetensors", "adapter"}),
        ({"prompt": {"soft_prompt": False}}, {"adapter"}),
        ({"generator": {"mode": "frozen"}}, {"encoder.safetensors"}),
        ({"generator": {"mode": "full"}}, {"encoder.safetensors", "llm.safetensors"}),
    ],
)
def test_only_trained_weights_are_saved_and_give_the_same_numbers(tmp_path, changes, files):
    settings = tiny.config(**changes)
    model = trained(settings)
    folder = checkpoint.save(tmp_path, 4, model, {"step": 4})
    assert {p.name for p in folder.iterdir()} == files | {"step.json", "trainer.pt"}
    fresh = tiny.model(settings)
    assert replies_and_loss(fresh) != replies_and_loss(model)
    assert checkpoint.load(folder, fresh, base_name="tiny") == 4
    assert replies_and_loss(fresh) == replies_and_loss(model)


def test_another_base_model_is_refused_by_name(tmp_path):
    folder = checkpoint.save(tmp_path, 1, trained(tiny.config()), {})
    with pytest.raises(ValueError, match=r"another base model than generator.model tiny"):
        checkpoint.load(folder, tiny.model(tiny.config(), seed=1), base_name="tiny")


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    folder = checkpoint.save(tmp_path, 1, trained(tiny.config()), {})
    without = tiny.model(tiny.config(prompt={"soft_prompt": False}))
    with pytest.raises(ValueError, match=r"holds encoder\.safetensors"):
        checkpoint.load(folder, without, base_name="tiny")
    wider = tiny.model(tiny.config(encoder={"hidden": 64}))
    with pytest.raises(ValueError, match=r"another shape of .*expected"):
        checkpoint.load(folder, wider, base_name="tiny")


@pytest.mark.parametrize(
    "name", ["encoder.safetensors", "adapter/adapter_model.safetensors", "trainer.pt"]
)
def test_a_truncated_file_is_named(tmp_path, name):
    folder = checkpoint.save(tmp_path, 1, trained(tiny.config()), {"step": 1})
    file = folder / name
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        checkpoint.load(folder, tiny.model(tiny.config()), base_name="tiny")


@pytest.mark.parametrize("change", ["drop", "add"])
def test_every_expected_tensor_must_be_there_and_no_other(tmp_path, change):
    folder = checkpoint.save(tmp_path, 1, trained(tiny.config()), {})
    file = folder / "encoder.safetensors"
    tensors = load_file(file)
    if change == "drop":
        del tensors["to_words.scale"]
    else:
        tensors["stranger"] = torch.zeros(1)
    save_file(tensors, file)
    header = json.loads((folder / "step.json").read_text())
    header["sha256"]["encoder.safetensors"] = checkpoint.sha256(file)
    (folder / "step.json").write_text(json.dumps(header))
    with pytest.raises(
        ValueError, match="lacks to_words.scale" if change == "drop" else "unknown stranger"
    ):
        checkpoint.load(folder, tiny.model(tiny.config()), base_name="tiny")


def test_a_missing_file_and_a_foreign_folder_are_refused(tmp_path):
    folder = checkpoint.save(tmp_path, 1, trained(tiny.config()), {})
    (folder / "trainer.pt").unlink()
    with pytest.raises(ValueError, match=r"trainer\.pt is missing"):
        checkpoint.check(folder)
    (folder / "step.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        checkpoint.check(folder)
    with pytest.raises(ValueError, match="not a whole checkpoint step"):
        checkpoint.check(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        checkpoint.best(tmp_path / "nowhere")


def test_a_failed_save_leaves_nothing(tmp_path):
    model = trained(tiny.config())
    with pytest.raises(AttributeError):
        checkpoint.save(tmp_path, 1, model, {"bad": lambda: None})
    assert checkpoint.steps(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_trainer_state_never_runs_code(tmp_path):
    folder = checkpoint.save(tmp_path, 1, trained(tiny.config()), {"step": 1})
    assert checkpoint.load_trainer(folder) == {"step": 1}
    torch.save({"path": tmp_path}, folder / "trainer.pt")  # pickles a class that is not plain data
    with pytest.raises(Exception, match=r"[Ww]eights.only|Unsupported"):
        checkpoint.load_trainer(folder)


def test_keep_only_and_best(tmp_path):
    model = trained(tiny.config())
    folders = [checkpoint.save(tmp_path, step, model, {}) for step in (1, 2, 3)]
    checkpoint.set_best(tmp_path, folders[1])
    checkpoint.keep_only(tmp_path, {"step-000003", "step-000002"})
    assert checkpoint.steps(tmp_path) == folders[1:]
    assert checkpoint.best(tmp_path) == folders[1]
