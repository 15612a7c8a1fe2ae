"""What each version has, beside the tables of the SDK."""

import pytest
from mcp_types import methods, version

from toolcrib.protocol import versions


def test_the_versions_are_those_of_the_sdk() -> None:
    assert versions.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert versions.MODERN_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


@pytest.mark.parametrize("known", versions.KNOWN_VERSIONS)
def test_the_methods_of_each_version_are_those_of_the_sdk_and_tasks(known: str) -> None:
    def of(table: object) -> set[str]:
        assert isinstance(table, type(methods.CLIENT_REQUESTS))
        return {method for method, found in table if found == known}

    def but_tasks(found: frozenset[str]) -> set[str]:
        return {method for method in found if "tasks/" not in method}

    assert but_tasks(versions.client_requests(known)) == of(methods.CLIENT_REQUESTS)
    assert but_tasks(versions.client_notifications(known)) == of(methods.CLIENT_NOTIFICATIONS)


def test_a_version_that_is_unknown_is_never_newer_than_another() -> None:
    assert [version for version in (*versions.KNOWN_VERSIONS, "zzz") if versions.is_since(version, "2025-11-25")] == [
        "2025-11-25",
        "2026-07-28",
    ]
