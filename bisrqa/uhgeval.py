"""UHGEval: does a language model tell real news from made-up news, and does it make up its own?

Rows are the official ones (``newsBeginning``, ``hallucinatedContinuation``, ``realContinuation``,
``newsRemainder``, ``annotations``). Four tasks:

- *generative*: the model continues a news text; its first sentence is held against the real text
  (BLEU-4, ROUGE-L, keyword precision, sentence similarity);
- *selective*: it chooses the real one of two continuations;
- *discriminative*, by keyword and by sentence: it says whether something is made up; as many
  made-up as real ones are asked about.

A reply that cannot be understood is *invalid*, which is wrong, and is counted.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa import overlap_metrics
from bisrqa.chat import Chat, Messages
from bisrqa.data.json_rows import rows as rows_of
from bisrqa.data.passages import sentences
from bisrqa.overlap_metrics import mean

TASKS = ("generative", "selective", "discriminative_keyword", "discriminative_sentence")
BATCH = 16
FIELDS = ("id", "headLine", "newsBeginning", "hallucinatedContinuation", "realContinuation")
_REASON = re.compile(r"[，,]")


class Row(NamedTuple):
    """One piece of news."""

    id: str
    headline: str
    beginning: str
    made_up: str
    """A continuation that a model made up."""
    real: str
    remainder: str
    keywords: tuple[tuple[str, bool], ...]
    """Of the made-up continuation, each with whether it is sound."""


class Item(NamedTuple):
    """Something to ask, and what would be right."""

    messages: Messages
    right: str


def read(path: Path) -> list[Row]:
    """Rows of a file of JSON lines, gzipped or not.

    Raises:
        ValueError: A broken line, or fields that are missing; names the line.
    """
    return [_row(row, where) for where, row in rows_of(path)]


def _row(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object")
    for field in FIELDS:
        if not isinstance(row.get(field), str):
            raise ValueError(f"{where}: field {field}: expected text")
    keywords = []
    for annotation in row.get("annotations", ()):
        word, mark, verdict = annotation.partition("<sep>")
        if not mark:
            raise ValueError(f"{where}: annotation without <sep>: {annotation[:80]!r}")
        keywords.append((word.strip(), _REASON.split(verdict.strip())[0] == "合理"))
    name, headline, beginning, made_up, real = (row[field] for field in FIELDS)
    remainder = row.get("newsRemainder", "")
    return Row(name, headline, beginning, made_up, real, remainder, tuple(keywords))


def evaluate(
    rows: Sequence[Row],
    chat: Chat,
    tasks: Sequence[str] = TASKS,
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]] | None = None,
) -> dict[str, float | int]:
    """Scores of each task, flat: ``selective.accuracy``, ``selective.invalid`` and so on."""
    result: dict[str, float | int] = {}
    for task in tasks:
        if task == "generative":
            found = _generative(rows, chat, embed)
        else:
            found = _chosen(ITEMS[task](rows), chat)
        result |= {f"{task}.{name}": value for name, value in found.items()}
    return result


def _generative(
    rows: Sequence[Row],
    chat: Chat,
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]] | None,
) -> dict[str, float | int]:
    replies = _asked(chat, [_continue(row) for row in rows])
    said = [next(iter(sentences(reply)), "") for reply in replies]
    real = [row.real + row.remainder for row in rows]
    result: dict[str, float | int] = {"n": len(rows), "invalid": sum(not text for text in said)}
    pairs = list(zip(said, real, strict=True))
    result["bleu-4"] = mean(overlap_metrics.bleu(*pair)["bleu"] for pair in pairs)
    result["rouge-l"] = mean(overlap_metrics.rouge_l(*pair) for pair in pairs)
    result["keyword_precision"] = mean(overlap_metrics.keyword_precision(*pair) for pair in pairs)
    if embed is not None and rows:
        x = torch.linalg.vecdot(embed(said), embed(real))
        result["sentence_similarity"] = round(float(x.mean()), 6)
    return result


def _chosen(items: Sequence[Item], chat: Chat) -> dict[str, float | int]:
    replies = [choice(reply) for reply in _asked(chat, [item.messages for item in items])]
    right = [said == item.right for said, item in zip(replies, items, strict=True)]
    return {
        "n": len(items),
        "accuracy": mean(map(float, right)),
        "invalid": sum(said is None for said in replies),
    }


def choice(reply: str) -> str | None:
    """``A`` or ``B``, of a reply that says one of them and not the other; else None."""
    found = set(re.findall(r"(?<![A-Za-z])([ABＡＢ])(?![A-Za-z])", reply))
    found = {letter.translate({0xFF21: "A", 0xFF22: "B"}) for letter in found}
    return found.pop() if len(found) == 1 else None


def _asked(chat: Chat, conversations: Sequence[Messages]) -> list[str]:
    texts: list[str] = []
    for start in range(0, len(conversations), BATCH):
        texts += [reply.text for reply in chat(conversations[start : start + BATCH])]
    return texts


def _say(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _continue(row: Row) -> Messages:
    return _say(
        "请接着下面的新闻开头写一句话，符合事实，不要重复开头。",
        f"《{row.headline}》\n{row.beginning}",
    )


def selective(rows: Sequence[Row]) -> list[Item]:
    """Which continuation is real; the real one is first where the text's length is even."""
    items = []
    for row in rows:
        first = len(row.beginning) % 2 == 0
        pair = (row.real, row.made_up) if first else (row.made_up, row.real)
        text = f"《{row.headline}》\n{row.beginning}\n\nA：{pair[0]}\nB：{pair[1]}"
        asked = "新闻开头之后有两个续写，其中一个符合事实。只回答A或B。"
        items.append(Item(_say(asked, text), "A" if first else "B"))
    return items


def by_keyword(rows: Sequence[Row]) -> list[Item]:
    """Is a keyword of the made-up continuation sound; of each row as many that are as are not."""
    items = []
    for row in rows:
        sound, unsound = ([w for w, good in row.keywords if good is kind] for kind in (True, False))
        count = min(len(sound), len(unsound))
        for words, right in ((sound[:count], "A"), (unsound[:count], "B")):
            for word in words:
                text = f"《{row.headline}》\n{row.beginning}{row.made_up}\n\n“{word}”"
                asked = "新闻中的这个词是否符合事实？A：符合，B：不符合。只回答A或B。"
                items.append(Item(_say(asked, text), right))
    return items


def by_sentence(rows: Sequence[Row]) -> list[Item]:
    """Is a continuation real; of each row the real one and the made-up one."""
    items = []
    for row in rows:
        for text, right in ((row.real, "A"), (row.made_up, "B")):
            said = f"《{row.headline}》\n{row.beginning}\n\n{text}"
            asked = "最后一段续写是否符合事实？A：符合，B：不符合。只回答A或B。"
            items.append(Item(_say(asked, said), right))
    return items


ITEMS: Mapping[str, Callable[[Sequence[Row]], list[Item]]] = {
    "selective": selective,
    "discriminative_keyword": by_keyword,
    "discriminative_sentence": by_sentence,
}
