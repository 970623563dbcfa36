"""Structured logs, one line per transition, JSON or text, on stderr.

Ours (structlog) and everybody else's (standard `logging`: kopf, asyncio, aiohttp) go through the same renderer, so a
line looks the same from every component. What a line is about is *bound*, not formatted into the message: `policy`,
`job`, `token`. Bind with `bound(policy=..., job=..., token=...)` around a piece of work; the binding follows asyncio
tasks.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TextIO

import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

from compaction.api.text.printing import printable


class LogFormat(StrEnum):
    """The format of log lines."""

    JSON = "json"
    TEXT = "text"


#: These lead a text line, in this order.
BOUND_KEYS = ("policy", "catalog", "job", "token")


@contextmanager
def bound(
    *, policy: object = None, catalog: object = None, job: object = None, token: int | None = None
) -> Iterator[None]:
    """Every line logged inside carries these keys; None is left out."""
    given = {"policy": policy, "catalog": catalog, "job": job, "token": token}
    values = {key: value if isinstance(value, int) else str(value) for key, value in given.items() if value is not None}
    with bound_contextvars(**values):
        yield


def setup_logging(format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Route everything to one handler on `stream` (stderr). Calling it again replaces the former set-up."""
    stream = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.stdlib.ExtraAdder(allow=()),
        _bound_first,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Loggers are made at import time, before this runs: they must look the configuration up each time.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(format, stream)],
        )
    )
    remove_handlers()
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    # Kopf reports each watched event at INFO under its object loggers; our own lines say what was decided.
    logging.getLogger("kopf.objects").setLevel(max(level, logging.WARNING))
    logging.getLogger("kopf").setLevel(max(level, logging.INFO))
    # Alembic tells at INFO what it has loaded, each time that an index is opened.
    logging.getLogger("alembic").setLevel(max(level, logging.WARNING))
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def remove_handlers() -> None:
    """Undo the routing of a call of `setup_logging`; levels stay."""
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)


def _renderers(format: LogFormat, stream: TextIO) -> list[Processor]:
    if format is LogFormat.JSON:
        return [
            structlog.processors.EventRenamer("message"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False),
        ]
    # The default formatter (rich) prints the variables of every frame: a policy's sparkConf may hold credentials.
    return [
        _printable_values,
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            timestamp_key="time",
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
        ),
    ]


def _printable_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Text for a terminal: what comes from outside may not write on it."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _bound_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    first = {key: event[key] for key in BOUND_KEYS if key in event}
    return first | {key: value for key, value in event.items() if key not in first}
