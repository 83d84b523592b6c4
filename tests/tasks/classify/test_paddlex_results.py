"""Requests to a classifier with an inference.yml have the results of PaddleX 3.7.2.

Pictures, configurations and PaddleX's stored results are those of tests/tasks/transforms.
"""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from against_paddlex import digest, digest_of_result, generated_cases

from paddlepool.tasks.classify.pipeline import ClassifyPipeline, ClassifyRequest
from tests.tasks.classify.models import FunctionCodecs, OutputContext, model

FOLDER = Path(__file__).parents[1] / "transforms"
STORED = json.loads((FOLDER / "paddlex_results.json").read_text("utf-8"))
CASES = {name: case for name, case in generated_cases().items() if case.kind == "classify"}


@pytest.mark.parametrize("name", CASES)
async def test_a_request_has_paddlexs_labels(name: str, tmp_path: Path) -> None:
    case, stored = CASES[name], STORED[name]
    (tmp_path / "inference.yml").write_text(yaml.safe_dump(dict(case.document)), "utf-8")
    info = model(*stored["shape"][1:], classes=(1000,), directory=tmp_path)
    pipeline = ClassifyPipeline(info, codecs=FunctionCodecs(case.picture).codecs)
    context = OutputContext(deadline=time.monotonic() + 9, outputs={"y": case.output})
    result = await pipeline.run(ClassifyRequest(b"a picture"), context)
    [job] = context.jobs
    assert digest(job["x"]) == stored["tensor"]
    names = [label.label for label in result.labels]
    scores = [float(np.around(np.float32(label.score), 5)) for label in result.labels]
    assert digest_of_result([names, scores]) == stored["result"]
