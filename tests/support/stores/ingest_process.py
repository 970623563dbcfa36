"""An ingest endpoint as a process of its own, started by its command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from compaction.serving.service import HttpService
from support.stores.ingest import Endpoint


@contextmanager
def serving_process(
    command: Sequence[str], server: type[HttpService], *, secret: Path, log: Path, environment: Mapping[str, str]
) -> Iterator[tuple[int, Endpoint]]:
    """The command, started on a free port for whoever has the shared secret; its process id, and a client. `log`: the
    file that takes what it has written when it has ended. `server`: what it serves, for the client.
    """
    options = ["--port=0", f"--secret-file=writer={secret}", "--log-format=json"]
    words = [sys.executable, "-m", "compaction.cli.main", *command, *options]
    with subprocess.Popen(words, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True) as running:
        said = running.stderr
        assert said is not None
        lines = []
        rest = None
        try:
            for line in said:
                lines.append(line)
                if found := re.search(r'"port": (\d+)', line):
                    break
            else:
                pytest.fail("".join(lines))
            rest = threading.Thread(target=lambda: log.write_text("".join(lines) + said.read()))
            rest.start()
            yield running.pid, Endpoint(int(found[1]), server=object.__new__(server))
        finally:
            if running.poll() is None:
                running.terminate()
            running.wait()
            if rest is not None:
                rest.join()
