"""Triples by a server that speaks OpenAI's protocol: vLLM, SGLang, ``transformers serve``."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bisrqa.config import ExtractionConfig
from bisrqa.data.records import Chunk
from bisrqa.extraction.base import SCHEMA, VERSION, Extraction, messages, parse

logger = logging.getLogger(__name__)


class ServerError(ValueError):
    """The server cannot be reached, or refuses; what was done before is kept."""


class Server:
    """Asks for some chunks at a time.

    The server's own structured output is used where it has it. A request is tried again after a
    time-out or an error of the server, a bounded number of times and later each time.

    Raises:
        ServerError: It cannot be reached, or does not know the model.
        ValueError: ``openai`` is not installed.
    """

    cached = True

    def __init__(self, config: ExtractionConfig):
        try:
            import openai
        except ImportError as error:
            raise ValueError("extraction.method server: pip install 'bisrqa[extract]'") from error
        self._openai: Any = openai
        self._config = config
        self._structured, self._known = True, False
        # Without a key in the environment a local server gets one that says nothing.
        key = os.environ.get("OPENAI_API_KEY", "none")
        self._client: Any = openai.OpenAI(
            base_url=config.url, api_key=key, timeout=config.timeout_s, max_retries=config.retries
        )
        self.identity = f"server/{VERSION}/{config.model}/{config.max_new_tokens}"
        try:
            known = [model.id for model in self._client.models.list()]
        except openai.APIError as error:
            raise ServerError(
                f"extraction.url: no server answers at {config.url} ({error})"
            ) from error
        if known and config.model not in known:
            logger.warning(
                "%s does not list the model %s (it has %s)", config.url, config.model,
                ", ".join(known[:5]),
            )  # fmt: skip

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        if self._structured and chunks:
            self._probe(chunks[0])
        with ThreadPoolExecutor(self._config.concurrency) as pool:
            return list(pool.map(self._ask, chunks))

    def _probe(self, chunk: Chunk) -> None:
        """Find out once whether the server holds replies to a schema."""
        if self._known:
            return
        try:
            self._send(chunk, max_tokens=1)
        except self._openai.BadRequestError as error:
            logger.warning("%s has no structured output (%s)", self._config.url, error)
            self._structured = False
        except self._openai.APIError as error:
            raise ServerError(self._lost(error)) from error
        self._known = True

    def _send(self, chunk: Chunk, *, max_tokens: int) -> Any:
        options: dict[str, Any] = {}
        if self._structured:
            schema = {"name": "triples", "schema": SCHEMA, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        return self._client.chat.completions.create(
            model=self._config.model, messages=messages(chunk), temperature=0.0,
            max_tokens=max_tokens, **options,
        )  # fmt: skip

    def _ask(self, chunk: Chunk) -> Extraction:
        try:
            reply = self._send(chunk, max_tokens=self._config.max_new_tokens)
        except self._openai.APIError as error:
            raise ServerError(self._lost(error)) from error
        text = (reply.choices[0].message.content if reply.choices else None) or ""
        used = reply.usage
        tokens = (used.prompt_tokens, used.completion_tokens) if used else (0, 0)
        return parse(text, chunk, *tokens)

    def _lost(self, error: Exception) -> str:
        return (
            f"extraction.url: {self._config.url} stopped answering ({error}); what was extracted "
            "is kept: run the same command again to go on"
        )
