"""The API document is valid, and the gateway does what it says: schemathesis sends what the document allows, and more."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from delayserver.web.gateway import MESSAGES
from tests.delayserver.web.web_server import SECONDS_MAX, Web

EXAMPLES = 12
STREAMS = ("/v1/live", "/v1/subjects/{subject}/groups/{group}/deliveries")


def document_of(web: Web) -> dict[str, Any]:
    document: dict[str, Any] = web.ask("GET", "/openapi.json").json
    return document


def test_the_document_is_valid_openapi(web: Web) -> None:
    document = document_of(web)
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


def test_the_document_has_the_names_that_scripts_rely_on(web: Web) -> None:
    document = document_of(web)
    fields = document["components"]["schemas"]["SendRequest"]["properties"]
    assert {"subject", "body", "delay_ms", "due_ms", "delay", "at", "message_id", "expires_ms", "properties", "tag",
            "order_key"} <= set(fields)  # fmt: skip
    assert {"post", "get", "delete", "patch"} == set(document["paths"][MESSAGES])
    assert {"/login", "/logout", "/v1/session"} <= set(document["paths"])
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) and all(names)


def test_the_gateway_answers_as_its_openapi_document_says(web: Web) -> None:
    schema = schemathesis.openapi.from_dict(document_of(web))
    tried = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if operation.path in STREAMS:
            continue  # They do not end.
        tried += 1

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def try_it(case: schemathesis.Case[Any]) -> None:
            if isinstance(case.body, dict) and "wait_ms" in case.body:
                case.body["wait_ms"] = 0
            response = case.call(base_url=f"http://{web.host}:{web.port}", timeout=SECONDS_MAX)
            case.validate_response(
                response,
                checks=[
                    not_a_server_error,
                    status_code_conformance,
                    content_type_conformance,
                    response_schema_conformance,
                ],
            )

        try_it()
    assert tried == sum(len(each) for path, each in schema.raw_schema["paths"].items() if path not in STREAMS)
