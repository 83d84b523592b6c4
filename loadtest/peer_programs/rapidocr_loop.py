"""Read pictures with RapidOCR again and again, without a server. Started by loadtest/peers_ocr.py.

    python rapidocr_loop.py ENGINE MODELS PICTURE...

MODELS has det.onnx, rec.onnx and keys.txt. After "ready", each line of the standard input is a
number of seconds; the answer is a line of JSON with the seconds of each page that was read in them.
"""

import json
import sys
import time
from itertools import cycle
from pathlib import Path

from rapidocr import EngineType, RapidOCR

THREADS = {"onnxruntime": "intra_op_num_threads", "openvino": "inference_num_threads"}


def main() -> None:
    engine, models, *pictures = sys.argv[1:]
    kind = {"onnxruntime": EngineType.ONNXRUNTIME, "openvino": EngineType.OPENVINO}[engine]
    read = RapidOCR(
        params={
            f"EngineConfig.{engine}.{THREADS[engine]}": 1,
            "Global.log_level": "error",
            "Global.use_cls": False,
            "Global.text_score": 0.0,
            "Global.max_side_len": 4000,
            "Det.engine_type": kind,
            "Det.model_path": f"{models}/det.onnx",
            "Det.limit_side_len": 960,
            "Det.limit_type": "max",
            "Det.mean": [0.485, 0.456, 0.406],
            "Det.std": [0.229, 0.224, 0.225],
            "Det.thresh": 0.3,
            "Det.box_thresh": 0.6,
            "Det.unclip_ratio": 1.5,
            "Det.use_dilation": False,
            "Rec.engine_type": kind,
            "Rec.model_path": f"{models}/rec.onnx",
            "Rec.rec_keys_path": f"{models}/keys.txt",
        }
    )
    bodies = [Path(picture).read_bytes() for picture in pictures]
    lines = [len(read(body).txts or ()) for body in bodies]  # the first run of each shape is slow
    print("ready", sum(lines), flush=True)
    pages = cycle(bodies)
    for line in sys.stdin:
        began, seconds = time.perf_counter(), []
        while not seconds or time.perf_counter() - began < float(line):
            started = time.perf_counter()
            read(next(pages))
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


main()
