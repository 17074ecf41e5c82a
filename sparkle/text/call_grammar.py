"""The grammar of tool calls as the model writes them, in Lark. Compiles nothing, knows no prose around them.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

The outer tags are tokens of their own, which no text is spelled with; what is between them is text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from sparkle.schemas.tools import MAX_CALLS
from sparkle.text.tool_parameters import Parameter, Parameters

VALUE_END = "\n</parameter>\n"
"""Ends a value, at its first place: no raw text may hold it, nor what would make it come earlier."""

_CALLS = r"""
one_call: <tool_call> "\n<function=" ({functions}) "</function>\n" </tool_call>
FREE: /(?s:.*)/ & ~/(?s:.*)\n<\/parameter>(\n(?s:.*))?/
"""


def calls_grammar(tools: Mapping[str, Parameters], *, parallel: bool) -> str:
    """Rules, of which `calls` is one call or, with `parallel`, several; there is at least one tool."""
    functions = " | ".join(f"f{place}" for place in range(len(tools)))
    several = f'one_call ("\\n" one_call){{0,{MAX_CALLS - 1}}}' if parallel else "one_call"
    rules = [f"calls: {several}", _CALLS.strip().replace("{functions}", functions)]
    for place, (name, parameters) in enumerate(tools.items()):
        rules += _function(f"f{place}", name, parameters.listed)
    return "\n".join(rules) + "\n"


def _function(rule: str, name: str, parameters: Sequence[Parameter]) -> Iterator[str]:
    named = [(f"{rule}_p{place}", parameter) for place, parameter in enumerate(parameters)]
    body = " ".join(own if parameter.required else f"{own}?" for own, parameter in named)
    tag = json.dumps(f"{name}>\n")
    yield f"{rule}: {tag} {body}"
    for own, parameter in named:
        yield from _parameter(own, parameter)


def _parameter(rule: str, parameter: Parameter) -> Iterator[str]:
    tag = json.dumps(f"<parameter={parameter.name}>\n")
    if parameter.raw is None:
        yield f"{rule}: {tag} {rule}_v {json.dumps(VALUE_END)}"
        yield f"{rule}_v: %json {parameter.schema}"
    elif parameter.raw.one_line:
        yield f"{rule}: {tag} {rule.upper()}"
        yield f"{rule.upper()}: ({parameter.raw.terminal}) {json.dumps(VALUE_END)}"
    else:
        yield f"{rule}: {tag} {rule}_v"
        yield f"{rule}_v[suffix={json.dumps(VALUE_END)}]: {rule.upper()}"
        yield f"{rule.upper()}: ({parameter.raw.terminal}) & FREE"
