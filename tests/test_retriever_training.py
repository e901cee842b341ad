"""The walk learns: from answers alone, reproducibly, and what it has learnt is used and kept."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch

from bisrqa import (
    checkpoint,
    cli,
    evaluation,
    provenance,
    retriever_losses,
    retriever_training,
    runs,
)
from bisrqa.config import DataConfig, EmbedderConfig, LearningConfig, RetrieverConfig, RunConfig
from bisrqa.data.records import Question, Triple
from bisrqa.examples import Retriever
from bisrqa.graph.build import from_triples
from bisrqa.heads.base import gold_mask, topic_mask
from bisrqa.heads.bisrqa import BiSRQAHead
from bisrqa.heads.subgraphrag import SubgraphRAGHead
from bisrqa.retrieval.learned import LearnedWalk
from bisrqa.retrieval.trained import keys
from bisrqa.retriever_losses import Row

ROOT = Path(__file__).parent.parent
WORDS = [
    f"--config={ROOT}/configs/quickstart.yaml", "--learning.limit=24", "--learning.hidden=16",
    "--learning.epochs=3", "--learning.batch_size=8", "--learning.members=2",
]  # fmt: skip


WALK = retriever_training.KINDS["bisrqa"]


def asked(number: int) -> Question:
    """Everybody has a mother and a father; the question's word says whose child is asked for.

    An arbitrary embedding: no cosine helps.
    """
    way = number % 2
    names = [f"{number} {name}" for name in ("a", "b", "c", "d", "e")]
    triples = [
        Triple(names[0], "zug", names[1]), Triple(names[0], "kol", names[2]),
        Triple(names[3], "zug", names[0]), Triple(names[4], "kol", names[0]),
    ]  # fmt: skip
    return Question(
        id=str(number), question=("which zap?", "which lot?")[way], answers=(names[(1, 4)[way]],),
        topics=(names[0],), graph=tuple(triples),
    )  # fmt: skip


def rows(numbers) -> list[Row]:
    found = []
    for number in numbers:
        question = asked(number)
        graph = from_triples(question.graph, tiny.embed)
        x = tiny.embed([question.question])[0]
        topics, golds = topic_mask([question], graph), gold_mask([question], graph)
        key = keys([question])[0]
        found.append(Row(graph, x, graph.relation_x, graph.x @ x, topics, golds, key))
    return found


def loss_of(model: LearnedWalk, some: list[Row]) -> torch.Tensor:
    return retriever_training.loss_of(WALK, model, some, LearningConfig())


def config(**learning) -> RunConfig:
    sizes = {"epochs": 16, "batch_size": 8, "hidden": 16, "members": 2, "dropout": 0.0}
    return RunConfig(learning=LearningConfig(**{**sizes, "learning_rate": 0.02, **learning}))


def taught(settings: RunConfig) -> LearnedWalk:
    torch.manual_seed(settings.seed)
    own = settings.learning
    some = rows(range(32))
    model = LearnedWalk(
        tiny.DIM, hidden=own.hidden, members=own.members, dropout=own.dropout,
        seen=len(some) if own.cross_fit else 0,
    )  # fmt: skip
    if own.cross_fit:
        model.seen.copy_(torch.stack([row.key for row in some]))
    retriever_training._train(WALK, model, some, settings, progress=False)
    return model


def test_it_learns_which_relation_and_which_way(tmp_path):
    model = taught(config())
    model.save(tmp_path / "r", {})

    def found(settings: RetrieverConfig) -> float:
        head, right = BiSRQAHead(settings), 0
        for number in range(100, 120):
            question = asked(number)
            graph = from_triples(question.graph, tiny.embed)
            topics = topic_mask([question], graph)[None]
            node = head.score([question], tiny.embed([question.question]), graph, topics).node[0]
            best = int((node * ~topics[0]).argmax())
            right += graph.node_text[best] in question.answers
        return right / 20

    assert found(RetrieverConfig()) < 0.7
    assert found(RetrieverConfig(learned=str(tmp_path / "r"))) == 1.0


def test_the_loss_falls_and_a_second_run_is_the_same():
    first, second = (taught(config(epochs=5)) for _ in range(2))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    with torch.no_grad():
        before = loss_of(LearnedWalk(tiny.DIM, members=2), rows(range(32)))
        after = loss_of(first, rows(range(32)))
    assert (after < before).all()


def test_members_learn_as_if_they_were_alone():
    """Neither losses nor clipped gradients of one of two know of the other."""
    torch.manual_seed(3)
    two, one = (LearnedWalk(tiny.DIM, hidden=8, members=n, dropout=0.0) for n in (2, 1))
    with torch.no_grad():
        for name, value in two.named_parameters():
            value.add_(torch.randn_like(value))
            one.get_parameter(name).copy_(value[:1])
    losses = []
    for model in (two, one):
        loss = loss_of(model, rows(range(16)))
        loss.sum().backward()
        retriever_training._clip(list(model.parameters()))
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0][:1], losses[1])
    for name, value in one.named_parameters():
        gradient, other = value.grad, two.get_parameter(name).grad
        assert gradient is not None
        assert other is not None
        torch.testing.assert_close(gradient, other[:1], atol=1e-6, rtol=1e-3)


def test_a_question_is_kept_from_the_member_that_retrieves_for_it():
    """No gradient of its loss reaches that one, and what the others say of it does not count."""
    some = rows(range(16))
    model = LearnedWalk(tiny.DIM, hidden=8, members=3, dropout=0.0, seen=16)
    model.seen.copy_(torch.stack([row.key for row in some]))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value))
    for number, row in enumerate(some):
        own = int(model.left_out(row.key[None]))
        model.zero_grad()
        loss_of(model, [row]).sum().backward()
        learns = [float(model.outer.grad[member].abs().sum()) > 0 for member in range(3)]
        assert learns == [member != own for member in range(3)]
        head = BiSRQAHead(RetrieverConfig())
        head.learned = model
        question = asked(number)
        pairs = row.relation_x, torch.zeros(2, dtype=torch.long), torch.arange(2)
        x = row.question_x[None]
        found = head._relations([question], x, *pairs)
        alone = model.relations(x, *pairs)
        assert torch.equal(found.along[0], alone.along[own])
        stranger = dataclasses.replace(question, id="another")
        found = head._relations([stranger], x, *pairs)
        torch.testing.assert_close(found.along[0], alone.along.mean(0))


def test_the_loss_by_hand():
    """A topic with three neighbours, two of them golds; each is held against the third alone."""
    graph = from_triples([Triple("t", "r", name) for name in ("a", "b", "c")], tiny.embed)
    question = Question(id="q", question="q", answers=("a", "b"), topics=("t",), graph=())
    topics, golds = topic_mask([question], graph), gold_mask([question], graph)
    order = [graph.node_text.index(name) for name in ("t", "a", "b", "c")]
    score = torch.zeros(1, 4)
    score[0, order] = torch.tensor([9.0, 1.0, 3.0, 2.0])
    found = retriever_losses.behind(
        score, golds, ~golds & ~topics, torch.zeros(4, dtype=torch.long), 1
    )[0]
    expected = (torch.tensor(1.0).exp().log1p() + torch.tensor(-1.0).exp().log1p()) / 2
    assert found.tolist() == pytest.approx([float(expected)])


def test_the_triple_scorer_learns_too(tmp_path):
    """The same questions, by head subgraphrag; untrained it takes the nearest triples."""
    some, settings = rows(range(32)), config(epochs=30)
    kind = retriever_training.KINDS["subgraphrag"]
    some = [
        row._replace(graph=from_triples(asked(n).graph, tiny.embed)) for n, row in enumerate(some)
    ]
    torch.manual_seed(0)
    model = kind.build(tiny.DIM, settings.learning, len(some))
    model.seen.copy_(torch.stack([row.key for row in some]))
    first, last = retriever_training._train(kind, model, some, settings, progress=False)
    assert last < first / 4
    model.save(tmp_path / "r", {})

    def found(folder: str | None) -> float:
        head, right = SubgraphRAGHead(RetrieverConfig(top_k=1, learned=folder)), 0
        for number in range(100, 120):
            question = asked(number)
            graph = from_triples(question.graph, tiny.embed)
            (evidence,) = head([question], tiny.embed([question.question]), graph)
            right += graph.node_text[int(evidence.ranked[0])] in question.answers
        return right / 20

    assert found(None) < 0.7
    assert found(str(tmp_path / "r")) == 1.0


def test_golds_that_cannot_be_found_teach_nothing():
    lone = dataclasses.replace(asked(0), answers=("nowhere", "0 a"))  # the topic itself
    graph = from_triples(lone.graph, tiny.embed)
    x = tiny.embed([lone.question])

    class One(Retriever):
        def __init__(self):
            pass

        def graphs(self, questions):
            return list(questions), x, graph

    assert list(retriever_training._rows([lone], One(), WALK)) == []


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> tuple[Path, list[str]]:
    """A retriever of the real command on the quick-start data, and the words that use its cache."""
    folder = tmp_path_factory.mktemp("retriever")
    tiny.save_llm(folder / "llm")
    words = [*WORDS, f"--cache_dir={folder}/cache", f"--generator.model={folder}/llm"]
    assert cli.main(["train-retriever", *words, "--out", str(folder / "r")]) == 0
    return folder / "r", words


def test_the_command_writes_what_retrieve_uses(learnt, tmp_path, capsys):
    folder, words = learnt
    header = json.loads((folder / "retriever.json").read_text())
    assert header["report"]["learnt_from"] == 24
    assert 0 < header["report"]["loss"] < 10  # too few questions for it to fall
    assert header["settings"]["hidden"] == 16
    capsys.readouterr()
    found = []
    for extra in ([], [f"--retriever.learned={folder}"]):
        command = ["retrieve", *words, "--split=train", "--limit=24", *extra]
        assert cli.main(command) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["n"] == found[1]["n"] == 24
    places = [{k: v for k, v in f.items() if "recall@" in k or "triple" in k} for f in found]
    assert places[0] != places[1]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "name a folder for what is learnt: --retriever.learned FOLDER"),
        (["--out=x", "--head=bm25"], "head bm25 learns nothing: set it to bisrqa or subgraphrag"),
        (["--out=x", "--data.graph=shared", "--data.graph_path=kb.parquet"], "bring their graph"),
    ],
)
def test_a_mistake_is_named(learnt, extra, message, capsys):
    assert cli.main(["train-retriever", *learnt[1], *extra]) == 1
    assert message in capsys.readouterr().err


def test_a_run_keeps_the_retriever_that_it_was_trained_with(learnt, tmp_path, capsys):
    """Whatever becomes of the folder that the config names."""
    trained_folder, words = learnt
    folder = tmp_path / "named"
    shutil.copytree(trained_folder, folder)
    train = [
        "train", *words, f"--retriever.learned={folder}",
        f"--output_dir={tmp_path}/runs", "--name=tiny", "--data.train_limit=8",
        "--retriever.top_k=3", "--prompt.max_prompt_tokens=100", "--generator.max_new_tokens=3",
        "--encoder.hidden=16", "--training.validation_limit=2", "--training.epochs=1",
        "--training.eval_every=1", "--evaluation.limit=4",
        "--evaluation.split=validation",
    ]  # fmt: skip
    assert cli.main(train) == 0
    run = tmp_path / "runs/tiny"
    own = provenance.content(run / checkpoint.RETRIEVER)
    assert own == provenance.content(folder)
    assert json.loads((run / "run.json").read_text())["retriever"] == own
    evaluate = ["evaluate", "--checkpoint", str(run), "--evaluation.limit=4"]
    assert cli.main([*evaluate, "--out", str(tmp_path / "first")]) == 0
    shutil.rmtree(folder)
    assert cli.main([*evaluate, "--out", str(tmp_path / "second")]) == 0
    evidence = []
    for name in ("first", "second"):
        text = (tmp_path / name / "predictions.jsonl").read_text("utf8")
        evidence.append([json.loads(line)["evidence"] for line in text.splitlines()])
    assert evidence[0] == evidence[1]
    # Results are those of what is in the folder.
    LearnedWalk(384, hidden=4).save(tmp_path / "other", {})
    known = [
        evaluation._identity(runs.configs.load(run / checkpoint.CONFIG), learned, None)
        for learned in (None, str(run / checkpoint.RETRIEVER), str(tmp_path / "other"))
    ]
    assert len(set(known)) == 3
    # Another one that is named counts, and so does none.
    saved = runs.configs.load(run / checkpoint.CONFIG)
    other = dataclasses.replace(saved, retriever=RetrieverConfig(top_k=3, learned="other"))
    assert runs.with_retriever(other, run) == other
    plain = dataclasses.replace(saved, retriever=RetrieverConfig(top_k=3))
    assert runs.with_retriever(plain, run) == plain


def test_a_run_that_began_with_the_plain_walk_keeps_it(tmp_path):
    """Though the folder has been made since, and one is left from a start that was killed."""
    config = dataclasses.replace(
        tiny.config(retriever={"learned": str(tmp_path / "r")}), output_dir=str(tmp_path)
    )
    LearnedWalk(16, hidden=4).save(tmp_path / "r", {})
    LearnedWalk(16, hidden=4).save(config.run_dir / checkpoint.RETRIEVER, {})
    assert runs.with_retriever(config, config.run_dir) == config  # not begun yet
    (config.run_dir / checkpoint.CONFIG).write_text(runs.to_yaml(config))
    (config.run_dir / checkpoint.RUN).write_text('{"retriever": null}')
    assert runs.with_retriever(config, config.run_dir).retriever.learned is None


def test_prepared_data_depend_on_what_is_in_the_folder(tmp_path):
    base = RunConfig(data=DataConfig(source="quickstart"), embedder=EmbedderConfig())

    def depends(folder) -> str:
        own = dataclasses.replace(base, retriever=RetrieverConfig(learned=folder))
        return provenance.digest(provenance.of_examples(own, "train", 4, tmp_path))

    first, moved, second = (str(tmp_path / name) for name in ("a", "b", "c"))
    LearnedWalk(384, hidden=4).save(Path(first), {})
    shutil.copytree(first, moved)
    torch.manual_seed(1)
    LearnedWalk(384, hidden=4).save(Path(second), {})
    assert depends(first) == depends(moved)
    assert len({depends(None), depends(first), depends(second)}) == 3
