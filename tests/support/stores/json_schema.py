"""As much of JSON Schema as our documents use: what is wrong with a value. An unknown keyword is an error."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NOTES = {"title", "description", "default"}
_OTHER_TYPES = {
    "items", "properties", "required", "additionalProperties", "minLength", "minItems", "maxLength", "maxItems",
    "minimum", "maximum", "propertyNames", "maxProperties", "pattern",
}  # fmt: skip
"""They say nothing about a value of another type."""


def problems(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str = "$") -> list[str]:
    """Every reason why the value is not one of the schema."""
    found: list[str] = []
    for keyword, rule in schema.items():
        match keyword:
            case "$ref":
                target: Any = document
                for part in rule.removeprefix("#/").split("/"):
                    target = target[part]
                found += problems(value, target, document, where)
            case "anyOf":
                tried = [problems(value, item, document, where) for item in rule]
                found += [] if [] in tried else [f"{where}: none of {tried}"]
            case "type":
                wrong = not isinstance(value, _TYPES[rule]) or (isinstance(value, bool) and rule != "boolean")
                found += [f"{where}: {value!r} is no {rule}"] if wrong else []
            case "const":
                found += [] if value == rule and not isinstance(value, bool) else [f"{where}: {value!r} is not {rule}"]
            case "enum":
                found += [] if value in rule else [f"{where}: {value!r} is not in {rule}"]
            case "items" if isinstance(value, list):
                found += [p for n, item in enumerate(value) for p in problems(item, rule, document, f"{where}[{n}]")]
            case "properties" if isinstance(value, dict):
                for name in rule.keys() & value.keys():
                    found += problems(value[name], rule[name], document, f"{where}.{name}")
            case "required" if isinstance(value, dict):
                found += [f"{where}: {name} is missing" for name in rule if name not in value]
            case "additionalProperties" if isinstance(value, dict):
                others = [name for name in value if name not in schema.get("properties", {})]
                if rule is False:
                    found += [f"{where}: {name} is unknown" for name in others]
                else:
                    found += [p for name in others for p in problems(value[name], rule, document, f"{where}.{name}")]
            case "propertyNames" if isinstance(value, dict):
                found += [p for name in value for p in problems(name, rule, document, f"{where}: {name}")]
            case "maxProperties" if isinstance(value, dict):
                found += [f"{where}: too many"] if len(value) > rule else []
            case "pattern" if isinstance(value, str):
                found += [] if re.search(rule, value) else [f"{where}: not of the form {rule}"]
            case "minLength" | "minItems" if isinstance(value, str | list):
                found += [f"{where}: too short"] if len(value) < rule else []
            case "maxLength" | "maxItems" if isinstance(value, str | list):
                found += [f"{where}: too long"] if len(value) > rule else []
            case "minimum" if isinstance(value, int):
                found += [f"{where}: too small"] if value < rule else []
            case "maximum" if isinstance(value, int):
                found += [f"{where}: too large"] if value > rule else []
            case _:
                assert keyword in _NOTES | _OTHER_TYPES, keyword
    return found
