"""The part of the JSON schema of SARIF 2.1.0 that a file of ours may use, written by hand from the OASIS standard.

An object that the standard closes is closed here too, and holds only what we write: a property that is new in the files
must be looked up in the standard, section 3, and added.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
INDEX = {"type": "integer", "minimum": -1}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: Any, *, unique: bool = False) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": unique}


MESSAGE = closed("text", text=TEXT, markdown=TEXT)  # 3.11, 3.12
ARTIFACT_LOCATION = closed(uri={"type": "string", "format": "uri-reference"}, index=INDEX)  # 3.4
REGION = closed(startLine={"type": "integer", "minimum": 1})  # 3.30
LOGICAL_LOCATION = closed(name=TEXT, fullyQualifiedName=TEXT, kind=TEXT)  # 3.33
LOCATION = closed(  # 3.28
    id=INDEX,
    physicalLocation=closed("artifactLocation", artifactLocation=ARTIFACT_LOCATION, region=REGION),
    logicalLocations=listed(LOGICAL_LOCATION, unique=True),
    message=MESSAGE,
)
RESULT = closed(  # 3.27
    "message",
    ruleId=TEXT,
    ruleIndex=INDEX,
    level={"enum": ["none", "note", "warning", "error"]},
    message=MESSAGE,
    locations=listed(LOCATION),
    relatedLocations=listed(LOCATION, unique=True),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    baselineState={"enum": ["new", "unchanged", "updated", "absent"]},
    properties={"type": "object"},
)
RULE = closed("id", id=TEXT, shortDescription=MESSAGE, fullDescription=MESSAGE, help=MESSAGE)  # 3.49
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **closed(  # 3.13
        "version",
        "runs",
        **{"$schema": {"type": "string", "format": "uri"}},
        version={"enum": ["2.1.0"]},
        runs=listed(
            closed(  # 3.14
                "tool",
                tool=closed("driver", driver=closed("name", name=TEXT, version=TEXT, rules=listed(RULE, unique=True))),
                artifacts=listed(closed(location=ARTIFACT_LOCATION)),
                results=listed(RESULT),
            )
        ),
    ),
}
