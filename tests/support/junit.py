"""JUnit XML against the schema that CI services share (Ant's, as Jenkins has written it down)."""

from xml.etree import ElementTree

# Element → attributes that it must have, those that it may have besides, and the elements inside.
_ELEMENTS = {
    "testsuites": (set(), {"name", "tests", "failures", "errors", "skipped", "time"}, {"testsuite"}),
    "testsuite": ({"name", "tests"}, {"failures", "errors", "skipped", "time", "timestamp",
                                      "hostname"}, {"testcase", "properties"}),
    "testcase": ({"name", "classname"}, {"time"}, {"failure", "error", "skipped", "system-out"}),
    "failure": (set(), {"message", "type"}, set()),
    "error": (set(), {"message", "type"}, set()),
    "system-out": (set(), set(), set()),
}  # fmt: skip
_COUNTS = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}


def read_junit(text: str) -> list[tuple[str, str, str, str]]:
    """Class, name, outcome and words of each test case of a document that keeps to the schema."""
    root = ElementTree.fromstring(text.encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        needed, more, inside = _ELEMENTS[element.tag]
        assert needed <= element.attrib.keys() <= needed | more, element.tag
        assert {child.tag for child in element} <= inside, element.tag
        for attribute in element.attrib.keys() & _COUNTS.keys():
            found = sum(1 for _ in element.iter(_COUNTS[attribute]))
            assert element.get(attribute) == str(found), (element.tag, attribute)
        if element.get("time") is not None:
            assert float(element.get("time", "")) >= 0
    cases = []
    for case in root.iter("testcase"):
        (only,) = case
        outcome = "passed" if only.tag == "system-out" else only.tag
        if outcome != "passed":
            assert only.get("message") == only.text and "\n" not in (only.text or "")
        cases.append((case.get("classname"), case.get("name"), outcome, only.text))
    return cases
