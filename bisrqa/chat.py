"""Talking to a language model: one in this process, or one behind a server.

Whoever asks (extraction, a judge of events, an answerer in an evaluation) gives conversations and,
if replies have to be JSON, a schema; replies are greedy.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from bisrqa.config import ChatConfig
from bisrqa.packaged import resolve_model

logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, str]]
"""``[{"role": ..., "content": ...}, ...]``"""


class Reply(NamedTuple):
    """What a model said, and what it took."""

    text: str
    prompt_tokens: int = 0
    reply_tokens: int = 0


class ServerError(ValueError):
    """The server cannot be reached, or refuses; what was done before is kept."""


@runtime_checkable  # the type checks of the tests need it
class Chat(Protocol):
    """Something that replies."""

    identity: str
    """All that its replies depend on."""

    def __call__(
        self, conversations: Sequence[Messages], schema: Mapping[str, Any] | None = None
    ) -> list[Reply]:
        """One reply each, in order; as JSON of a schema where one is given."""
        ...


def build(kind: str, config: ChatConfig, cache_dir: Path, key: str) -> Chat:
    """``llm`` or ``server``; ``key`` is where the config says so, for messages."""
    return LocalChat(config, cache_dir, key) if kind == "llm" else ServerChat(config, key)


class LocalChat:
    """Greedy replies of a ``transformers`` model, several at a time.

    A schema is kept to by ``outlines`` with ``llguidance`` (extra ``extract``).

    Raises:
        ValueError: A schema is asked for and one of them is not installed.
    """

    def __init__(self, config: ChatConfig, cache_dir: Path, key: str):
        self._config, self._key = config, key
        self._source = resolve_model(config.model, cache_dir)
        self._model: Any = None
        self._tokenizer: Any = None
        self._generators: dict[str, Any] = {}
        self.identity = f"llm/2/{config.model}@{config.revision}/{config.max_new_tokens}"

    def __call__(
        self, conversations: Sequence[Messages], schema: Mapping[str, Any] | None = None
    ) -> list[Reply]:
        self._load()
        prompts = [self._prompt(messages) for messages in conversations]
        longest = self._config.max_new_tokens
        with torch.no_grad():
            if schema is None:
                texts = self._plain(prompts, longest)
            else:
                generator = self._structured(schema)
                texts = generator.batch(prompts, max_new_tokens=longest, do_sample=False)
        asked, written = (
            [len(ids) for ids in self._tokenizer(some, add_special_tokens=False).input_ids]
            for some in (prompts, texts)
        )
        return [Reply(*row) for row in zip(texts, asked, written, strict=True)]

    def _load(self) -> None:
        if self._model is not None:
            return
        from transformers import AutoModelForCausalLM, AutoTokenizer

        revision, cuda = self._config.revision, torch.cuda.is_available()
        self._tokenizer = AutoTokenizer.from_pretrained(self._source, revision=revision)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        model = AutoModelForCausalLM.from_pretrained(
            self._source, revision=revision, dtype=torch.bfloat16 if cuda else torch.float32
        )
        device = torch.device("cuda" if cuda else "cpu")
        self._model = model.to(device).eval()  # pyright: ignore[reportArgumentType]

    def _prompt(self, messages: Messages) -> str:
        if self._tokenizer.chat_template:
            return self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        return "\n\n".join(message["content"] for message in messages) + "\n\n"

    def _plain(self, prompts: list[str], longest: int) -> list[str]:
        self._tokenizer.padding_side = "left"
        batch = self._tokenizer(
            prompts, add_special_tokens=False, padding=True, return_tensors="pt"
        ).to(self._model.device)
        ids = self._model.generate(
            **batch, max_new_tokens=longest, do_sample=False,
            pad_token_id=self._tokenizer.pad_token_id,
        )  # fmt: skip
        return self._tokenizer.batch_decode(
            ids[:, batch.input_ids.shape[1] :], skip_special_tokens=True
        )

    def _structured(self, schema: Mapping[str, Any]) -> Any:
        try:
            import llguidance  # noqa: F401  # outlines takes it only when it is asked for a schema
            import outlines
        except ImportError as error:
            raise ValueError(f"{self._key} llm: pip install 'bisrqa[extract]'") from error
        wanted = json.dumps(schema)
        if wanted not in self._generators:
            wrapped = outlines.from_transformers(self._model, self._tokenizer)
            # Reads a schema as it goes: the default backend makes one automaton of it beforehand,
            # which takes minutes where bounded texts stand in lists of objects.
            self._generators[wanted] = outlines.Generator(
                wrapped, outlines.json_schema(wanted), backend="llguidance"
            )
        return self._generators[wanted]


class ServerChat:
    """A server that speaks OpenAI's protocol: vLLM, SGLang, ``transformers serve``.

    Its own structured output is used where it has it. A request is tried again after a time-out or
    an error of the server, a bounded number of times and later each time.

    Raises:
        ServerError: It cannot be reached.
        ValueError: ``openai`` is not installed.
    """

    def __init__(self, config: ChatConfig, key: str):
        try:
            import openai
        except ImportError as error:
            raise ValueError(f"{key} server: pip install 'bisrqa[extract]'") from error
        self._openai: Any = openai
        self._config = config
        self._part = key.rpartition(".")[0]
        self._structured, self._known = True, False
        # Without a key in the environment a local server gets one that says nothing.
        secret = os.environ.get("OPENAI_API_KEY", "none")
        self._client: Any = openai.OpenAI(
            base_url=config.url, api_key=secret, timeout=config.timeout_s,
            max_retries=config.retries,
        )  # fmt: skip
        self.identity = f"server/{config.model}/{config.max_new_tokens}"
        try:
            known = [model.id for model in self._client.models.list()]
        except openai.APIError as error:
            raise ServerError(
                f"{self._part}.url: no server answers at {config.url} ({error})"
            ) from error
        if known and config.model not in known:
            logger.warning(
                "%s does not list the model %s (it has %s)", config.url, config.model,
                ", ".join(known[:5]),
            )  # fmt: skip

    def __call__(
        self, conversations: Sequence[Messages], schema: Mapping[str, Any] | None = None
    ) -> list[Reply]:
        if schema is not None and self._structured and conversations:
            self._probe(conversations[0], schema)
        with ThreadPoolExecutor(self._config.concurrency) as pool:
            return list(pool.map(lambda one: self._ask(one, schema), conversations))

    def _probe(self, messages: Messages, schema: Mapping[str, Any]) -> None:
        """Find out once whether the server holds replies to a schema."""
        if self._known:
            return
        try:
            self._send(messages, schema, max_tokens=1)
        except self._openai.BadRequestError as error:
            logger.warning("%s has no structured output (%s)", self._config.url, error)
            self._structured = False
        except self._openai.APIError as error:
            raise ServerError(self._lost(error)) from error
        self._known = True

    def _send(
        self, messages: Messages, schema: Mapping[str, Any] | None, *, max_tokens: int
    ) -> Any:
        options: dict[str, Any] = {}
        if schema is not None and self._structured:
            wanted = {"name": "reply", "schema": schema, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return self._client.chat.completions.create(
            model=self._config.model, messages=messages, temperature=0.0,
            max_tokens=max_tokens, **options,
        )  # fmt: skip

    def _ask(self, messages: Messages, schema: Mapping[str, Any] | None) -> Reply:
        try:
            reply = self._send(messages, schema, max_tokens=self._config.max_new_tokens)
        except self._openai.APIError as error:
            raise ServerError(self._lost(error)) from error
        text = (reply.choices[0].message.content if reply.choices else None) or ""
        used = reply.usage
        tokens = (used.prompt_tokens, used.completion_tokens) if used else (0, 0)
        return Reply(text, *tokens)

    def _lost(self, error: Exception) -> str:
        return (
            f"{self._part}.url: {self._config.url} stopped answering ({error}); what was done is "
            "kept: run the same command again to go on"
        )
