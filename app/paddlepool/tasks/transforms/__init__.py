"""The operations of `inference.yml`: a picture in, tensors out; a model's output in, results out.

    config      reads inference.yml into frozen values                    (no picture library)
    preprocess  the operations before the model, one function each        (codec processes)
    stages      prepare(): all operations of a model on one picture       (codec processes)
    labels      Topk and CTCLabelDecode: labels and texts with scores     (NumPy alone)
    masks       the label of each pixel                                   (codec processes)
    boxes       DBPostProcess: quadrangles around text, in reading order  (codec processes)
    agreement   how well outputs of a detector or recogniser agree        (no picture library)
    comparison  a detector's or recogniser's samples and measure          (offline commands)
    samples     reads sample pictures or draws them                       (offline commands)

A task reads the file with `inference_config(info)` when its pipeline is built. With each picture it
sends `config.as_meta()`, the operations, to a function of its own in a codec process. That function
calls `prepare(picture, operations)`, or adds operations of the task to those of `preprocess`.

`config.postprocess` says which function turns the output into results. The fields of a TopK are
arguments of `top_labels`, and those of a BoxesFromMap are arguments of `boxes_from_map`. A
TextFromClasses has the characters for `text_from_classes`, and a LabelMap stands for `label_map`.

Results equal those of PaddleX 3.7.2, except for the differences that docs/paddlex.md lists.
"""
