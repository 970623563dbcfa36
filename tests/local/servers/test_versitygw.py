"""The S3 server of the tests starts, knows one account, and says why when it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.local.errors import ControlPlaneError
from tools.servers.versitygw import start_versitygw


def test_one_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "versitygw"
    program.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    program.chmod(0o755)
    with (
        pytest.raises(ControlPlaneError, match=r"(?s)versitygw ended with 3.*out of luck"),
        start_versitygw(tmp_path / "run", program, port=1),
    ):
        pass
