"""One format for everybody's lines; policy, job and token bound."""

import asyncio
import io
import json
import logging

import pytest
import structlog

from compaction.kube.logging import LogFormat, bound, setup_logging


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_lines_carry_what_was_bound(stream: io.StringIO) -> None:
    setup_logging(LogFormat.JSON, stream=stream)
    with bound(policy="ns/p", job="j", token=3):
        structlog.get_logger("compaction.x").info("assigned", worker="w")
    structlog.get_logger("compaction.x").info("later")
    first, second = lines(stream)
    assert first["message"] == "assigned"
    assert (first["policy"], first["job"], first["token"], first["worker"]) == ("ns/p", "j", 3, "w")
    assert (first["level"], first["logger"]) == ("info", "compaction.x")
    assert "policy" not in second


def test_lines_of_others_look_the_same(stream: io.StringIO) -> None:
    setup_logging(LogFormat.JSON, stream=stream)
    logging.getLogger("kopf.reactor").warning("watch of %s broke", "leases")
    (line,) = lines(stream)
    assert line["message"] == "watch of leases broke"
    assert (line["level"], line["logger"]) == ("warning", "kopf.reactor")
    assert "time" in line


def test_bindings_follow_their_task_and_no_other(stream: io.StringIO) -> None:
    setup_logging(LogFormat.JSON, stream=stream)

    async def work(policy: str) -> None:
        with bound(policy=policy):
            await asyncio.sleep(0)
            structlog.get_logger("x").info("step", mine=policy)

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(main())
    assert all(line["policy"] == line["mine"] for line in lines(stream))


def test_tracebacks_stay_on_one_json_line(stream: io.StringIO) -> None:
    setup_logging(LogFormat.JSON, stream=stream)
    try:
        raise RuntimeError("a defect")
    except RuntimeError:
        structlog.get_logger("x").exception("failed")
    (line,) = lines(stream)
    assert "RuntimeError: a defect" in str(line["exception"])


@pytest.mark.parametrize("format", LogFormat)
def test_a_traceback_shows_no_values_of_variables(stream: io.StringIO, format: LogFormat) -> None:
    setup_logging(format, stream=stream)
    spark_conf = {"spark.hadoop.fs.secret.key": "".join(("swo", "rdfish"))}
    try:
        raise RuntimeError(f"a defect with {len(spark_conf)} settings")
    except RuntimeError:
        structlog.get_logger("x").exception("failed")
        logging.getLogger("kopf").exception("failed")
    assert stream.getvalue().count("RuntimeError: a defect with 1 settings") == 2
    assert "swordfish" not in stream.getvalue()


def test_text_leads_with_the_message_and_repeating_the_set_up_does_not_double_lines(stream: io.StringIO) -> None:
    setup_logging(LogFormat.TEXT, stream=stream)
    setup_logging(LogFormat.TEXT, stream=stream)
    with bound(job="j", policy="p"):
        structlog.get_logger("x").info("assigned", worker="w")
    (line,) = stream.getvalue().splitlines()
    assert "assigned" in line
    assert line.index("policy=p") < line.index("job=j") < line.index("worker=w")
