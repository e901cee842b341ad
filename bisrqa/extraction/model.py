"""Extraction by a language model: one call a chunk, held to a JSON schema."""

from collections.abc import Sequence

from bisrqa.chat import Chat
from bisrqa.data.records import Chunk
from bisrqa.extraction.base import Extraction, Task


class Model:
    """Asks a language model for what a task wants of each chunk."""

    cached = True

    def __init__(self, chat: Chat, task: Task):
        self._chat, self._task = chat, task
        self.identity = f"{task.name}/{task.version}/{chat.identity}"

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        asked = [self._task.messages(chunk) for chunk in chunks]
        replies = self._chat(asked, self._task.schema)
        return [
            self._task.parse(reply.text, chunk, reply.prompt_tokens, reply.reply_tokens)
            for reply, chunk in zip(replies, chunks, strict=True)
        ]
