"""YAML as the API server would take it, from files that anybody may have written.

PyYAML's safe loader, and beyond it: a key stands once in a mapping (as kubectl demands), keys are plain, nesting and
size are bounded with every alias counted as often as it is used (a few lines of aliases stand for gigabytes), and a
tagged value that is none is an error with its line.
"""

from collections.abc import Hashable
from typing import Any, Final

import yaml

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
