"""The operations of `inference.yml`: a picture in, tensors out; a model's output in, results out.

    config      reads inference.yml into frozen values                    (no picture library)
    preprocess  the operations before the model, one function each        (codec processes)
    stages      prepare(): all operations of a model on one picture       (codec processes)
    labels      Topk and CTCLabelDecode: labels and texts with scores     (NumPy alone)
    masks       the label of each pixel                                   (codec processes)
    boxes       DBPostProcess: quadrangles around text, in reading order  (codec processes)

A task reads the file once, when its pipeline is built, and sends the operations with each picture:

    config = read_inference_config(text)     # raises ConfigError; checks names and parameters
    meta = {"limits": asdict(codecs.limits), "operations": config.as_meta()}
    stage = "paddlepool.tasks.transforms.stages:open_picture"
    reply = await codecs.pool.submit(stage, meta, {"body": body}, deadline=deadline)
    tensor = reply.arrays["input"]           # (1, 3, height, width) float32
    height, width = reply.meta["size"]       # of the upright picture, for boxes and masks

`config.postprocess` is a TopK, BoxesFromMap, TextFromClasses or LabelMap; its fields are the
arguments of `top_labels`, `boxes_from_map`, `text_from_classes` and `label_map`. A stage with more
to do in the codec process calls `prepare(picture, operations)` itself.

Results equal those of PaddleX 3.7.2; docs/paddlex.md lists the operations and the differences.
"""
