"""A strict reader of `junit.xml`: the schema, and that its numbers are those of its tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import xmlschema

SCHEMA = Path(__file__).with_name("junit.xsd")


@cache
def _schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(SCHEMA)


def strictly(path: Path) -> ET.Element:
    """The suite, if the file is valid; an error that says where it is not, otherwise."""
    _schema().validate(path)
    suite = ET.parse(path).getroot()[0]
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name, "-1")) == len(suite.findall(f"testcase/{tag}")), name
    assert int(suite.get("tests", "-1")) >= len(suite.findall("testcase"))
    for case in suite.iter("testcase"):
        names = [each.get("name") for each in case.iter("property")]
        assert len(names) == len(set(names)), names
    return suite


def properties(element: ET.Element) -> dict[str | None, str | None]:
    return {each.get("name"): each.get("value") for each in element.findall("./properties/property")}
