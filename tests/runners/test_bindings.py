"""The doubles of TensorRT-RTX have the names and parameters of the installed one."""
import json

import pytest
from latentsync_rtx.tests.runners import bindings

pytest.importorskip("tensorrt_rtx")


def test_the_recorded_bindings_are_the_installed_ones():
    assert json.loads(bindings.RECORDED.read_text()) == bindings.specification(), "run python tests/runners/bindings.py"


def test_stubs_refuse_what_the_bindings_do_not_have():
    stubs = bindings.stubs()
    assert not hasattr(stubs.IExecutionContext, "execute_async_v4")
    with pytest.raises(TypeError):
        from unittest.mock import create_autospec

        create_autospec(stubs.IExecutionContext, instance=True).set_tensor_address("sample")
