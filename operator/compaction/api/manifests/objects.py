"""Objects from YAML as people write it: the same file works with kubectl and with `compactor run -f`.

What the API server would refuse is refused here with the same advice: unknown fields, wrong types ("5" is no number),
broken rules. Metadata is taken as it is; a status in the file is ignored, as kubectl does.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from compaction.api.manifests.yaml_loader import BoundedLoader
from compaction.api.text.safe import MESSAGE_LIMIT, cut, printable
from compaction.errors import InvalidManifestError

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
    """Whether an object of this kind is in a text. Raises InvalidManifestError."""
    return any(document.get("kind") == kind for document in documents_of(text, source))


def kinds_in(text: str, source: str) -> str:
    """What a text holds, for a message. Raises InvalidManifestError."""
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
            raise InvalidManifestError(f"{source}: a document is {_name_type(document)}, not a Kubernetes object")
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
    checked = _without_nulls({key: value for key, value in document.items() if key != "status"})
    checked["metadata"] = {key: metadata[key] for key in _READ_METADATA if metadata.get(key) is not None}
    try:
        # Strict JSON is what the API server takes: no "5" for 5, no 1 for true.
        return expected.model_validate_json(json.dumps(checked, default=str), strict=True, extra="forbid")
    except ValidationError as error:
        found = _own_problems(error.errors(include_url=False))
        problems = [f"{where}: {_advice(details, expected)}" for details in found[:_SHOWN_PROBLEMS]]
        if len(found) > _SHOWN_PROBLEMS:
            problems.append(f"{where}: and {len(found) - _SHOWN_PROBLEMS} problems more")
        raise InvalidManifestError("\n".join(problems)) from error
    except ValueError as error:
        raise InvalidManifestError(f"{where}: a value cannot be written as JSON: {error}") from error


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


def _name_type(value: object) -> str:
    return {str: "text", list: "a list", int: "a number", bool: "true or false"}.get(type(value), "a plain value")
