"""The OpenAPI 3.1 document of the API, made from the table of endpoints and the types of their documents. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from delayserver.web.api_words import HEADERS, PATHS, Words, words_of
from delayserver.web.bodies import NDJSON
from delayserver.web.cloud_events import STRUCTURED
from delayserver.web.problems import PROBLEM_JSON, TITLES
from delayserver.web.router import Endpoint
from delayserver.web.schemas import ProblemDocument

COMMON_ERRORS: Final = (400, 401, 403, 408, 429, 431, 502, 503, 504)
"""The errors that every request can meet."""
JSON: Final = "application/json"

_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A CloudEvent 1.0. The query says when it is due.",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1},
        "type": {"type": "string", "minLength": 1},
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
}
_LINES: Final[dict[str, Any]] = {"type": "string", "description": "One JSON object a line."}


def openapi_document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The document, as values of JSON."""
    schemas = _Schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "delayserver",
            "version": version,
            "description": "Messages that arrive when they are due.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # A server without tokens asks for none.
        "security": [{}, {"token": []}],
    }


class _Schemas:
    """The schemas of all types, by type, and the components that they refer to."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        types: list[Any] = [ProblemDocument]
        for endpoint in endpoints:
            documents = [each for answer in endpoint.answers.values() for each in (answer.document, *answer.rows)]
            types += [each for each in (endpoint.body, endpoint.query, *documents) if each is not None]
        found, self.components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        self._found = list(zip(types, found, strict=True))
        for component in self.components.values():
            if "description" in component:
                component["description"] = _plain(component["description"])
        for name, component in self.components.items():
            for field, schema in component.get("properties", {}).items():
                component["properties"][field] = self._described(name, field, schema)

    def _described(self, kind: str, field: str, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema of a field with its words: its own, those of the table, or those of the type that it refers to."""
        own = next(
            (each for each in [schema, *schema.get("anyOf", ())] if "description" in each and "$ref" not in each), None
        )
        if own is not None:
            examples = {"examples": own["examples"]} if own.get("examples") else {}
            return {**schema, "description": own["description"], **examples}
        said = words_of(kind, field)
        if said is not None:
            return {**_without_docstring(schema), "description": said.says, **_example(said)}
        name = (schema.get("$ref") or schema["additionalProperties"]["$ref"]).rpartition("/")[2]
        return {**_without_docstring(schema), "description": self.components[name]["description"]}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type."""
        return next(schema for known, schema in self._found if known == kind)

    def fields(self, kind: Any) -> dict[str, Any]:
        """The object schema of a struct."""
        schema: dict[str, Any] = self.components[self.of(kind)["$ref"].rpartition("/")[2]]
        return schema


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": endpoint.name, "summary": endpoint.summary}
    parameters = _parameters(endpoint, schemas)
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content = {media: {"schema": _body(media, schemas.of(endpoint.body))} for media in endpoint.medias}
        operation["requestBody"] = {"content": content, "required": True}
    responses = {str(status): _answer(endpoint, status, schemas) for status in endpoint.answers}
    for status in sorted({*COMMON_ERRORS, *endpoint.errors}):
        content = {PROBLEM_JSON: {"schema": schemas.of(ProblemDocument)}}
        responses[str(status)] = {"description": TITLES[status], "content": content}
    operation["responses"] = responses
    return operation


def _parameters(endpoint: Endpoint, schemas: _Schemas) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    found: list[dict[str, Any]] = [
        _parameter(segment.strip("{}"), "path", text | _example(PATHS[segment.strip("{}")]), required=True)
        | {"description": PATHS[segment.strip("{}")].says}
        for segment in endpoint.path.split("/")
        if segment.startswith("{")
    ]
    if endpoint.query is not None:
        fields = schemas.fields(endpoint.query)
        required = fields.get("required", [])
        found += [
            _parameter(name, "query", _without_null(schema), required=name in required)
            | {"description": schema["description"]}
            for name, schema in fields["properties"].items()
        ]
    found += [
        _parameter(name, "header", text | {"examples": [HEADERS[name]]}, required=False) | {"description": says}
        for name, says in endpoint.headers.items()
    ]
    return found


def _parameter(name: str, place: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    """A parameter; its description stands beside its schema, and not in it."""
    kept = {key: value for key, value in schema.items() if key != "description"}
    return {"name": name, "in": place, "required": required, "schema": kept}


def _example(said: Words) -> dict[str, Any]:
    return {} if said.example is None else {"examples": [said.example]}


def _plain(docstring: str) -> str:
    """A docstring as one paragraph."""
    return " ".join(docstring.split()).replace("``", "`")


def _without_docstring(schema: dict[str, Any]) -> dict[str, Any]:
    """A reference keeps its target alone: OpenAPI 3.1 allows words beside it."""
    return {key: value for key, value in schema.items() if key not in ("description", "examples")}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter is there or not."""
    if "anyOf" not in schema:
        return schema
    rest = [each for each in schema["anyOf"] if each != {"type": "null"}]
    others: dict[str, Any] = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    only: dict[str, Any] = rest[0] if len(rest) == 1 else {"anyOf": rest}
    return {**others, **only}


def _body(media: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {NDJSON: _LINES, STRUCTURED: _EVENT}.get(media, schema)


def _answer(endpoint: Endpoint, status: int, schemas: _Schemas) -> dict[str, Any]:
    answer = endpoint.answers[status]
    if not answer.media:
        return {"description": answer.says}
    schema: dict[str, Any] = {"type": "string"} if answer.document is None else schemas.of(answer.document)
    if answer.rows:
        schema = {"type": "array", "items": {"anyOf": [schemas.of(each) for each in answer.rows]}}
    content = {answer.media: {"schema": schema}}
    if NDJSON in endpoint.medias and status == 200:
        content[NDJSON] = {"schema": _LINES}
    return {"description": answer.says, "content": content}
