"""What an ONNX file declares, and whether it goes with a Paddle program."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.making.export.read_onnx import own_onnx, read_onnx_specs
from tests.tiny_onnx import classifier


def test_only_what_a_request_must_send_is_an_input(tmp_path: Path) -> None:
    """Older files list their weights as inputs, too; free sizes are words, 0 or absent."""
    program = classifier()
    program.graph.input.extend(
        [
            helper.make_tensor_value_info("head.weight", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("more", TensorProto.BFLOAT16, ["N", 0, None, 5]),
        ]
    )
    onnx.save(program, tmp_path / "network.onnx")
    inputs, outputs = read_onnx_specs(tmp_path / "network.onnx")
    assert inputs == (
        TensorSpec("rows", "float32", (-1, 4)),
        TensorSpec("more", "bfloat16", (-1, -1, -1, 5)),
    )
    assert outputs == (TensorSpec("scores", "float32", (-1, 3)),)


def test_a_file_for_inputs_of_another_size_does_not_go_with_the_program(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "network.onnx")
    spec = PredictorSpec(
        directory=tmp_path,
        program="p.json",
        params=None,
        inputs=(TensorSpec("rows", "float32", (-1, -1)),),
        outputs=(TensorSpec("output_0", "float32", (-1, 3)),),
        backend="paddle_inference",
        threads=1,
    )
    assert own_onnx(spec, "network.onnx").program == "network.onnx"
    other = replace(spec, inputs=(TensorSpec("rows", "float32", (-1, 5)),))
    with pytest.raises(
        ExportError, match=r"its inputs are rows float32 \[-1, 4\], those of p.json"
    ):
        own_onnx(other, "network.onnx")
