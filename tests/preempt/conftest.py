"""These tests run as those of the proxy do."""

from tests.proxy.conftest import _own_home, pytest_asyncio_loop_factories

__all__ = ["_own_home", "pytest_asyncio_loop_factories"]
