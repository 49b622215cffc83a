"""What the schema of SARIF 2.1.0 says against a file; `sarif-2.1.0.LICENSE` says where the schema is from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SCHEMA = json.loads(Path(__file__).with_name("sarif-2.1.0.json").read_text(encoding="utf-8"))


def violations(content: dict[str, Any]) -> list[str]:
    """Each with its place in the content; URIs are checked too."""
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("rfc3986_validator")  # jsonschema checks no URI without it
    validator = jsonschema.validators.validator_for(SCHEMA)(SCHEMA, format_checker=jsonschema.FormatChecker())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]
