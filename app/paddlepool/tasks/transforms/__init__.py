"""The operations of `inference.yml`: a picture in, tensors out; a model's output in, results out.

    config      reads inference.yml into frozen values                    (no picture library)
    preprocess  the operations before the model, one function each        (codec processes)
    stages      prepare(): all operations of a model on one picture       (codec processes)
    labels      Topk and CTCLabelDecode: labels and texts with scores     (NumPy alone)
    masks       the label of each pixel                                   (codec processes)
    boxes       DBPostProcess: quadrangles around text, in reading order  (codec processes)
    agreement   how well outputs of a detector or recogniser agree        (no picture library)
    comparison  its pictures, which `samples` reads or draws              (offline commands)

A task reads the file once, when its pipeline is built, with `inference_config(info)`. It sends
`config.as_meta()`, the operations, with each picture to a function of its own in a codec process,
which calls `prepare(picture, operations)`.

`config.postprocess` is a TopK, BoxesFromMap, TextFromClasses or LabelMap; its fields are the
arguments of `top_labels`, `boxes_from_map`, `text_from_classes` and `label_map`.

Results equal those of PaddleX 3.7.2, except for the differences that docs/paddlex.md lists.
"""
