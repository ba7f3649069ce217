"""These tests run as those of the proxy do."""

from tests.proxy.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
