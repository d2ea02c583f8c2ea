"""What the schema of the charts' values is put together from: texts, numbers, records, lists, and their patterns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratlab_spec.settings import reserved_folders
from stratlab_spec.settings.fields import YEAR_S

Schema = dict[str, Any]

# Of Kubernetes: 500m, 2Gi, 0.5
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
# the same above zero: of a volume "0" is no limit at all
SIZE = r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.0*[1-9][0-9]*)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
PREFIX = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/"
LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
QUALIFIED_NAME = rf"^({PREFIX})?{LABEL_NAME}$"  # 253 characters, a slash, and 63
REPOSITORY = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"
TAG = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[0-9a-f]{64})?$"
EXTENDED_RESOURCE = rf"^({PREFIX}{LABEL_NAME})?$"
MOUNT_PATH = r"^(/[^/:\x00-\x1f\x7f]+)+/?$"
NO_MOUNT_PATH = rf"{reserved_folders.PATTERN}|/\.\.?(/|$)"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
ENV_VALUE = r"^[^\x00]*$"  # no program can be given more
HTTP_URI = r"^(https?://[^\s/?#@]+([/?#][^\s]*)?)?$"  # no user:password@
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
SECRET_KEY = r"^[-._A-Za-z0-9]+$"


def text(pattern: str, description: str, **constraints: Any) -> Schema:
    return {"type": "string", "pattern": pattern, "description": description, **constraints}


def whole(description: str, *, minimum: int = 1, **constraints: Any) -> Schema:
    return {"type": "integer", "minimum": minimum, "description": description, **constraints}


def record(
    description: str, properties: Schema, required: Iterable[str] | None = None, **constraints: Any
) -> Schema:
    """All values are required but lists and maps, unless `required` names some.

    Helm fills in the defaults, and null takes one away: an empty list is a value, no number of pods is none.
    """
    schema = {"type": "object", "description": description, "additionalProperties": False}
    if required is None:
        required = [name for name, part in properties.items() if not _may_be_empty(part)]
    if required:
        schema["required"] = [*required]
    return {**schema, "properties": properties, **constraints}


def _may_be_empty(part: Schema) -> bool:
    return part.get("type") == "array" or "propertyNames" in part


def seconds(description: str, *, minimum: int = 0) -> Schema:
    """A year at most: sums of them fit the 32 bits that Kubernetes has for some."""
    return whole(description, minimum=minimum, maximum=YEAR_S)


def choice(description: str, *values: str) -> Schema:
    return {"enum": [*values], "description": description}


def switch(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def list_of(description: str, items: Schema, **constraints: Any) -> Schema:
    return {"type": "array", "items": items, "description": description, **constraints}


def depending(name: str, values: Iterable[str], then: Schema, otherwise: Schema) -> Schema:
    """What else a record must be where the field `name` has one of these values, and where not."""
    condition = {"required": [name], "properties": {name: {"enum": [*values]}}}
    return {"if": condition, "then": then, "else": otherwise}


def name(description: str, **constraints: Any) -> Schema:
    """Of an object in the cluster."""
    return text(DNS_SUBDOMAIN, description, maxLength=253, **constraints)


def optional_name(description: str, longest: int = 253) -> Schema:
    return text(DNS_SUBDOMAIN.replace("^", "^(").replace("$", ")?$"), description, maxLength=longest)


def image(description: str, further: Schema | None = None) -> Schema:
    properties = {
        "repository": text(REPOSITORY, "Where the image is, without the tag."),
        "tag": text(TAG, "Tag, also with a digest: 0.1.0@sha256:..."),
        "pullPolicy": choice("When it is pulled.", "IfNotPresent", "Always", "Never"),
    }
    return record(description, properties | (further or {}))


def resources(description: str) -> Schema:
    amount = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": QUANTITY}]}
    names = {"pattern": QUALIFIED_NAME}
    amounts = {"type": "object", "additionalProperties": amount, "propertyNames": names}
    return record(description, {"requests": amounts, "limits": amounts}, required=())


def map_of(description: str, values: Schema, names: str = QUALIFIED_NAME) -> Schema:
    """Whatever names of this pattern, each with a value of this schema."""
    return {
        "type": "object",
        "additionalProperties": values,
        "propertyNames": {"pattern": names},
        "description": description,
    }
