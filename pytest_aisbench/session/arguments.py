"""Parametrized arguments of a test: those that the workload has as parameters go to the job, and make a case each.

`with_arguments` finds them in a collected item. An argument that neither the job nor the test uses is a mistake: the
same job would be trained once, and shown as one green test for each value.
"""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_aisbench.engine.suites import Suite
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import WORKLOAD_FILE, Case

PARAMETERS = "parameters"  # of the marker: arguments that are given to the job though workload.toml does not name them
_LONGEST = 200  # characters of a value


def with_arguments(item: pytest.Item, case: Case, suite: Suite) -> Case:
    """The case that the item's own arguments make of it."""
    values: Mapping[str, Any] = getattr(item, "callspec").params  # noqa: B009 - of a Function alone
    named = marker_parameters(item.get_closest_marker("workload"), case.workload.name)
    given = {*case.workload.parameters, *named}
    # Sorted, so that two tests with the same values have one case, whatever the order of their marks.
    arguments = {name: _text(item, name, values[name]) for name in sorted(values) if name in given}
    for name in values:
        if name not in arguments and not _is_fixture(_fixtures(item).get(name, ())) and not _is_read(item, name):
            advice = f"name it in [parameters] of {WORKLOAD_FILE} or in the marker's parameters=, or take it away"
            raise UsageFault(f"{item.nodeid}: neither the job nor the test uses the argument {name!r}", advice=advice)
    for name in named:
        if name not in values:
            advice = f'parametrize it: @pytest.mark.parametrize("{name}", […])'
            raise UsageFault(
                f"{item.nodeid}: the marker's parameters= names {name!r}, which has no value", advice=advice
            )
    return suite.with_arguments(case, arguments) if arguments else case


def marker_parameters(marker: pytest.Mark | None, workload: str) -> tuple[str, ...]:
    named = marker.kwargs.get(PARAMETERS, ()) if marker else ()
    if not isinstance(named, (list, tuple)) or not all(isinstance(name, str) and name for name in named):
        advice = 'write parameters=["batch_size"]'
        raise UsageFault(f"the marker of workload {workload!r}: parameters= is a list of names", advice=advice)
    return tuple(named)


def _text(item: pytest.Item, name: str, value: Any) -> str:
    """The value as a script is given it on its command line."""
    wrong = not isinstance(value, (str, int, float)) or (isinstance(value, float) and not math.isfinite(value))
    text = "" if wrong else str(value)
    if wrong or not text or not text.isprintable() or len(text) > _LONGEST:
        raise UsageFault(
            f"{item.nodeid}: {name}={str(value)[:40]!r} cannot be a parameter of a job",
            advice=f"give a finite number, or a line of 1 to {_LONGEST} characters",
        )
    return text


def _fixtures(item: pytest.Item) -> Mapping[str, Sequence[Any]]:
    """The definitions of every fixture that the item needs, by name; pytest has no public list of them."""
    fixtures: Mapping[str, Sequence[Any]] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return fixtures


def _is_fixture(definitions: Sequence[Any]) -> bool:
    """False for a value that a mark or `pytest_generate_tests` gives to the test itself: pytest returns it as it is."""
    return any(not getattr(each.func, "__module__", "").startswith("_pytest.") for each in definitions)


def _is_read(item: pytest.Item, name: str) -> bool:
    """True if the test's own code, or a fixture, uses the argument; and where that cannot be seen."""
    code = getattr(inspect.unwrap(getattr(item, "function", None) or (lambda: None)), "__code__", None)
    if code is None or name not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return True  # pytest refuses an argument that is not asked for, so a fixture asks for it
    definitions = (each for group in _fixtures(item).values() for each in group)
    if any(name in definition.argnames for definition in definitions):
        return True
    loads = (step for step in dis.get_instructions(code) if step.opname.startswith("LOAD_"))
    return name in code.co_cellvars or any(name in _names(step.argval) for step in loads)


def _names(loaded: Any) -> tuple[Any, ...]:
    """Python 3.13 loads two variables by one instruction."""
    return loaded if isinstance(loaded, tuple) else (loaded,)
