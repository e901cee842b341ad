"""What all commands share: parsers, output, and how a mistake is told."""

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonargparse

from bisrqa.files import write_text

if TYPE_CHECKING:
    from accelerate import PartialState


def add_output(parser: jsonargparse.ArgumentParser) -> None:
    """``--table`` and ``--out``."""
    parser.add_argument("--table", action="store_true", help="Print Markdown tables, not JSON.")
    parser.add_argument(
        "--out", type=str | None, default=None, help="A file for the JSON, besides what is printed."
    )


def show(
    result: dict[str, Any],
    tables: Callable[[dict[str, Any]], str],
    namespace: jsonargparse.Namespace,
) -> None:
    """Print a result, as JSON or as tables."""
    text = written(result, namespace.out)
    print(tables(result) if namespace.table else text)


def written(result: dict[str, Any], out: str | None) -> str:
    """The JSON of a result, which is also put into a file where one is named."""
    check_out(out)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    if out:
        write_text(Path(out), text + "\n")
    return text


def check_out(out: str | None) -> None:
    """Refuse a file for the JSON that is none."""
    if out and not out.endswith(".json"):  # it could be the predictions
        raise ValueError(f"--out {out}: expected a name that ends in .json")


def parser_of(command: str, usage: str, description: str) -> jsonargparse.ArgumentParser:
    """A parser for one command."""
    # A usage of our own: the generated one lists every setting and hides the error below it.
    return jsonargparse.ArgumentParser(
        prog=f"bisrqa {command}", usage=f"bisrqa {command} {usage}", description=description
    )


def option(words: list[str], name: str) -> str | None:
    """The value of an option before the words are parsed."""
    for position, word in enumerate(words):
        if word == name and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
    return None


def _ours(error: Exception) -> bool:
    """Whether this package raised it, and so wrote the message for its user."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return Path(frame.f_code.co_filename).is_relative_to(Path(__file__).parent)


def first_process() -> bool:
    """Whether this is the process that speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def several() -> "PartialState | None":
    """The processes that ``accelerate launch`` or ``torchrun`` has started; None for one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    import torch
    from accelerate import PartialState

    # The first process may embed for hours while the others wait.
    return PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(hours=24))


def guarded(work) -> int:
    """Run a command: what the user can mend is one line on stderr, anything else a traceback."""
    logging.basicConfig(
        format="%(message)s", level=logging.INFO if first_process() else logging.ERROR
    )
    for noisy in ("httpx", "sentence_transformers", "transformers", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it asks for kernels when imported
    from transformers.utils import logging as transformers_logging

    # peft asks transformers 5 by the old name
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    transformers_logging.disable_progress_bar()  # the base model loads in a second or two
    try:
        work()
    except (ValueError, FloatingPointError, MemoryError, OSError) as error:
        if not isinstance(error, OSError) and not _ours(error):
            raise
        print(f"bisrqa: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nbisrqa: interrupted; the same command goes on from the last checkpoint",
            file=sys.stderr,
        )
        return 130
    return 0
