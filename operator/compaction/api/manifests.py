"""Objects, Secrets and ConfigMaps from YAML, as the API server would take them: for `compactor run -f`."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from compaction.api.policy.configuration import CONFIGURATION_KIND, CONFIGURATION_VERSION, OperatorConfiguration
from compaction.api.text.printing import MESSAGE_LIMIT, cut, plural, printable
from compaction.errors import CONFIG_MAP, InvalidManifestError

# YAML as the API server would take it, from files that anybody may have written.
#
# PyYAML's safe loader, and beyond it: a key stands once in a mapping (as kubectl demands), keys are plain, nesting
# and size are bounded with every alias counted as often as it is used (a few lines of aliases stand for gigabytes),
# and a tagged value that is none is an error with its line.

MAX_DEPTH: Final = 64
"""Nesting of values; a policy needs 10."""
MAX_SIZE: Final = 2 << 20
"""Values and characters together, aliases expanded."""
MAX_VALUES: Final = 100_000
"""Values, aliases expanded."""

# Bits. Which numbers a field takes is said by its own rule; one of thousands of digits cannot even be quoted.
_LONGEST_NUMBER: Final = 1024


def _refusal(problem: str, mark: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


class BoundedLoader(yaml.SafeLoader):
    """See the top of this module. Everything it refuses is a yaml.YAMLError with the place in the text."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._size = 0
        self._values = 0
        # What an alias stands for, by anchor; an anchor whose value is not complete yet is missing.
        self._weights: dict[str, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = event.anchor or ""
        if isinstance(event, yaml.AliasEvent):
            size, values = self._weights.get(anchor, (0, 0))
            if anchor in self.anchors and not values:
                raise _refusal(f"{anchor!r} stands inside itself", event.start_mark)
            self._spend(size, values, event)
            return super().compose_node(parent, index)
        before = self._size, self._values
        self._weights.pop(anchor, None)
        self._spend(len(event.value) if isinstance(event, yaml.ScalarEvent) else 0, 1, event)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refusal(f"values are nested deeper than {MAX_DEPTH}", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor:
            self._weights[anchor] = self._size - before[0], self._values - before[1]
        return node

    def _spend(self, size: int, values: int, event: yaml.Event) -> None:
        self._size += size + values
        self._values += values
        if self._size > MAX_SIZE or self._values > MAX_VALUES:
            limits = f"more than {MAX_VALUES} values or {MAX_SIZE} characters, aliases expanded"
            raise _refusal(limits, event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise _refusal(f"not a value of type {node.tag}", node.start_mark)
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal("a key is a plain text", key_node.start_mark)
            if key in seen and key != "<<":
                raise _refusal(f"key {key!r} occurs twice", key_node.start_mark)
            seen.add(key)
        made = super().construct_mapping(node, deep)
        if not all(isinstance(key, str | int | float | None) for key in made):
            raise _refusal("a key is a plain text", node.start_mark)
        return made

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
            # What Python itself says of a value such as 2001-99-99 or `!!int x`.
            raise _refusal(f"not a value of type {node.tag}", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
            raise _refusal("a number of hundreds of digits", node.start_mark)
        return value


# Objects from YAML as people write it: the same file works with kubectl and with `compactor run -f`.
#
# Input that the API server would refuse is refused here with the same advice: unknown fields, wrong types ("5" is no
# number), broken rules. Metadata is taken as it is; a status in the file is ignored, as kubectl does.

Model = TypeVar("Model", bound=BaseModel)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SECRET: Final = re.compile(r"\bkind\b[\"']?\s*:\s*[\"']?Secret\b")
MAX_TEXT: Final = 1 << 20
"""Characters of a file of policies: the API server takes objects of 1.5 MiB at most, and a policy has a few hundred."""
_SHOWN_PROBLEMS: Final = 10
_LONGEST_PATH: Final = 200
_READ_METADATA: Final = ("name", "namespace", "labels", "annotations")


def objects_of(text: str, model: type[Model], kind: str, *, source: str) -> list[Model]:
    """Every object of a kind in a YAML (or JSON) text, in order; other kinds are passed over. `source` names the file.

    Raises:
        InvalidManifestError: not YAML, or an object that the API server would refuse; the message has one line per
            problem, each with the field and what to write instead.
    """
    return [
        _object(document, model, kind, source)
        for document in documents_of(text, source)
        if document.get("kind") == kind
    ]


def holds(text: str, kind: str, *, source: str) -> bool:
    """Return whether an object of this kind is in a text. Raises InvalidManifestError."""
    return any(document.get("kind") == kind for document in documents_of(text, source))


def kinds_in(text: str, source: str) -> str:
    """Return the kinds in a text, for a message. Raises InvalidManifestError."""
    kinds = {cut(str(document.get("kind", "a document without kind")), 64) for document in documents_of(text, source)}
    return printable(cut(", ".join(sorted(kinds)), MESSAGE_LIMIT)) or "it is empty"


def documents_of(text: str, source: str) -> Iterator[Mapping[str, Any]]:
    """The objects in the text, those of a List one by one. Raises InvalidManifestError."""
    if len(text) > MAX_TEXT:
        raise InvalidManifestError(f"{source}: larger than {MAX_TEXT} characters: this is not a file of policies")
    try:
        documents = list(yaml.load_all(text, Loader=BoundedLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidManifestError(f"{source}: not valid YAML: {_reason(error, text)}") from None
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            names = {str: "text", list: "a list", int: "a number", bool: "true or false"}
            found = names.get(type(document), "a plain value")
            raise InvalidManifestError(f"{source}: a document is {found}, not a Kubernetes object")
        if document.get("kind") == "List" and isinstance(document.get("items"), list):
            yield from (item for item in document["items"] if isinstance(item, dict))
        else:
            yield document


def _reason(error: Exception, text: str) -> str:
    """What is wrong and where. The library also quotes the line, which may hold a password; of a file with Secrets it
    is only said where, because even a single word of it may be one.
    """
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "somewhere"
    if _SECRET.search(text):
        return f"see {place}"
    words = [getattr(error, "context", None), getattr(error, "problem", None)]
    said = " ".join(word for word in words if word) or str(error)
    return printable(cut(" ".join(f"{said} ({place})".split()), MESSAGE_LIMIT))


def _object(document: Mapping[str, Any], expected: type[Model], kind: str, source: str) -> Model:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise InvalidManifestError(f"{source}: {kind}: metadata.name: is required: give the object a name")
    where = f"{source}: {kind} {printable(cut(str(metadata['name']), 253))}"
    if not isinstance(metadata["name"], str) or not _NAME.fullmatch(metadata["name"]):
        raise InvalidManifestError(
            f"{where}: metadata.name: use lower case letters, digits, '-' and '.', with a letter or digit at both ends"
        )
    checked = {key: value for key, value in document.items() if key != "status"}
    checked["metadata"] = {key: metadata[key] for key in _READ_METADATA if metadata.get(key) is not None}
    return _validated(checked, expected, where)


def _validated(document: Mapping[str, Any], expected: type[Model], where: str) -> Model:
    """The model of a document. Strict JSON is what the API server takes: no "5" for 5, no 1 for true."""
    try:
        text = json.dumps(_without_nulls(document), default=str)
        return expected.model_validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        found = _own_problems(error.errors(include_url=False))
        problems = [f"{where}: {_advice(details, expected)}" for details in found[:_SHOWN_PROBLEMS]]
        if len(found) > _SHOWN_PROBLEMS:
            problems.append(f"{where}: and {len(found) - _SHOWN_PROBLEMS} problems more")
        raise InvalidManifestError("\n".join(problems)) from error
    except ValueError as error:
        raise InvalidManifestError(f"{where}: a value cannot be written as JSON: {error}") from error


def configuration_of(text: str, source: str) -> OperatorConfiguration:
    """The one configuration that a file of `--config` has. Raises InvalidManifestError, with file, field and remedy."""
    documents = list(documents_of(text, source))
    if len(documents) != 1:
        raise InvalidManifestError(
            f"{source}: it has {plural(len(documents), 'document')}: write one, of kind {CONFIGURATION_KIND}"
        )
    (document,) = documents
    head = {"apiVersion": CONFIGURATION_VERSION, "kind": CONFIGURATION_KIND}
    for member, value in head.items():
        if document.get(member) != value:
            raise InvalidManifestError(f"{source}: {member}: must be {value}")
    return _validated(document, OperatorConfiguration, source)


def _without_nulls(value: Any) -> Any:
    """The value without null members: the API server drops them too, and defaults take their place."""
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _own_problems(found: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without lists that are "too short" only because Pydantic does not count an item that has a problem of its own."""
    wrong = [details["loc"] for details in found]
    return [
        details
        for details in found
        if details["type"] != "too_short" or not any(_is_below(details["loc"], place) for place in wrong)
    ]


def _is_below(list_place: tuple[int | str, ...], place: tuple[int | str, ...]) -> bool:
    return len(place) > len(list_place) and place[: len(list_place)] == list_place


def _advice(details: ErrorDetails, expected: type[BaseModel]) -> str:
    """One problem as `field.path: what to do`."""
    path = _path(details["loc"]) + str(details.get("ctx", {}).get("field", ""))
    match details["type"]:
        case "missing":
            text = "is required"
        case "extra_forbidden":
            text = "unknown field" + _suggestion(details["loc"], expected)
        case _:
            message = details["msg"]
            text = message.replace("Input should", "must", 1)
    return printable(f"{cut(path, _LONGEST_PATH)}: {text}")


def _path(location: tuple[int | str, ...]) -> str:
    """A location as kubectl writes it: `spec.groups[0].segments`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _suggestion(location: tuple[int | str, ...], expected: type[BaseModel]) -> str:
    """The known field that an unknown one was probably meant to be."""
    model: Any = expected
    for step in location[:-1]:
        annotations = [field.annotation for field in model.model_fields.values() if field.alias == step]
        candidates = [choice for each in annotations for choice in (each, *get_args(each))]
        model = next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)
        if model is None:
            return ""
    known = [field.alias for field in model.model_fields.values()]
    close = difflib.get_close_matches(cut(str(location[-1]), 64), known, n=1)
    return f": did you mean {close[0]}?" if close else f": known here are {', '.join(known)}"


# Secrets and ConfigMaps from YAML as people write it for kubectl: beside the policy that names them.
#
# No value is ever part of a message, also when the text is not what it should be.

SECRET_KIND: Final = "Secret"
CONFIG_MAP_KIND: Final = "ConfigMap"


def load_secrets(text: str, *, source: str) -> dict[str, dict[str, str]]:
    """Every Secret in a YAML (or JSON) text: name -> key -> text, `stringData` above `data` as in Kubernetes; and every
    ConfigMap, whose name begins with `CONFIG_MAP`.

    Raises InvalidManifestError: not YAML, or a Secret that the API server would refuse, or whose value is no text.
    """
    kinds = (SECRET_KIND, CONFIG_MAP_KIND)
    found = [document for document in documents_of(text, source) if document.get("kind") in kinds]
    return dict(_secret(document, source) for document in found)


def _secret(document: Mapping[str, Any], source: str) -> tuple[str, dict[str, str]]:
    kind, metadata = document["kind"], document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidManifestError(f"{source}: {kind}: metadata.name: is required: give the {kind} a name")
    where = f"{source}: {kind} {printable(cut(name, 253))}"
    if kind == CONFIG_MAP_KIND:
        return f"{CONFIG_MAP}{name}", {key: _line(value) for key, value in _member(document, "data", where).items()}
    values = {key: _decoded(where, key, value) for key, value in _member(document, "data", where).items()}
    values |= {key: _line(value) for key, value in _member(document, "stringData", where).items()}
    return name, values


def _member(document: Mapping[str, Any], member: str, where: str) -> dict[str, str]:
    values = document.get(member) or {}
    if not isinstance(values, dict):
        raise InvalidManifestError(f"{where}: {member}: must be keys with their values")
    for key, value in values.items():
        if not isinstance(value, str):
            raise InvalidManifestError(f"{where}: {member}.{_key(key)}: must be text: put the value into quotes")
    return {str(key): value for key, value in values.items()}


def _decoded(where: str, key: str, value: str) -> str:
    try:
        return _line(base64.b64decode(value, validate=True).decode())
    except (binascii.Error, ValueError):
        advice = "must be base64 of a text in UTF-8: write plain text under stringData"
        raise InvalidManifestError(f"{where}: data.{_key(key)}: {advice}") from None


def _line(value: str) -> str:
    """Without the line breaks that editors leave at the end of a file, as workers read it."""
    return value.rstrip("\r\n")


def _key(key: object) -> str:
    return printable(cut(str(key), 253))
