"""The API document is valid, and the gateway does what it says: schemathesis sends what the document allows, and more."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
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

from delayserver.protocol import figures
from delayserver.web.api_words import WORDS
from delayserver.web.gateway import MESSAGES
from tests.delayserver.web.web_server import SECONDS_MAX, Web

EXAMPLES = 12
STATUS_TYPES = {"Status", "StorageStatus", *vars(figures)}
# Streams do not end, and the log tells of each reload.
LEFT_OUT = ("/v1/live", "/v1/subjects/{subject}/groups/{group}/deliveries", "/v1/reload")


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
        if operation.path in LEFT_OUT:
            continue
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
    assert tried == sum(len(each) for path, each in schema.raw_schema["paths"].items() if path not in LEFT_OUT)


def test_every_property_and_parameter_has_words_and_nearly_all_have_an_example(web: Web) -> None:
    document = document_of(web)
    fields = {
        f"{name}.{field}": schema
        for name, component in document["components"]["schemas"].items()
        for field, schema in component.get("properties", {}).items()
    }
    parameters = {
        f"{operation['operationId']} {parameter['name']}": parameter
        for path in document["paths"].values()
        for operation in path.values()
        for parameter in operation.get("parameters", [])
    }
    assert len(fields) > 200 and len(parameters) > 60
    said = {name: each.get("description", "") for name, each in (fields | parameters).items()}
    assert [name for name, text in said.items() if len(text) < 10 or not text.endswith((".", "?"))] == []
    # The figures of the status are numbers, whose names have the unit.
    others = {name: each for name, each in fields.items() if name.partition(".")[0] not in STATUS_TYPES}
    shown = [name for name, each in others.items() if "examples" in each]
    assert len(shown) > 0.9 * len(others) > 200
    assert [name for name, each in parameters.items() if "examples" not in each["schema"]] == []
    # An example is a value of its field.
    schemas = document["components"]
    for each in fields.values():
        for example in each.get("examples", []):
            jsonschema.validate(example, {**each, "components": schemas})
    # No words are left behind by a field that is gone, or whose type says what it means.
    assert [name for name, words in WORDS.items() if words.says not in said.values()] == []


def test_descriptions_are_plain_and_no_list_of_examples_is_empty(web: Web) -> None:
    schemas = document_of(web)["components"]["schemas"]
    texts = [each.get("description", "") for each in schemas.values()]
    assert [text for text in texts if "``" in text or "\n" in text] == []
    assert '"examples": []' not in json.dumps(schemas)


def test_the_policy_of_an_open_transaction_is_one_of_two_words(web: Web) -> None:
    policy = document_of(web)["components"]["schemas"]["OpenTransaction"]["properties"]["policy"]
    assert policy["enum"] == ["commit", "rollback"]


def test_every_operation_says_what_it_does(web: Web) -> None:
    for path in document_of(web)["paths"].values():
        for operation in path.values():
            assert len(operation["summary"]) > 10
            assert all(answer["description"] for answer in operation["responses"].values())
