"""What the demos print of a policy with kubectl is in the CRD: kubectl prints nothing for a field that is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from demos.blocks.run import BLOCKS_STATUS
from demos.segments.run import QUARANTINED
from demos.staging.run import STAGING_STATUS

CRD = Path(__file__).parents[3] / "crds" / "compaction.dev_compactionpolicies.yaml"
_RANGE = re.compile(r"\{range \.([\w.]+)\[\*\]\}(.*?)\{end\}", re.ASCII)
_FIELD = re.compile(r"\{\.([\w.]+)\}", re.ASCII)


def at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of a field; KeyError when there is none."""
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("template", [BLOCKS_STATUS, QUARANTINED, STAGING_STATUS])
def test_each_field_of_a_template_is_in_the_crd(template: str) -> None:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    found = 0
    for path, inner in _RANGE.findall(template):
        item = at(schema, path)["items"]
        found += len([at(item, field) for field in _FIELD.findall(inner)])
    found += len([at(schema, field) for field in _FIELD.findall(_RANGE.sub("", template))])
    assert found >= 2
