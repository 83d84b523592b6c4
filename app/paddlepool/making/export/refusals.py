"""Adds advice to the error messages of frameworks that refuse a program."""

ADVICE = {
    "Unsupported model IR version": "save the model with a lower one: model.ir_version = 10",
    "Opset ": "export the model for a lower opset, or convert it with onnx.version_converter",
    "Type of attribute: scale is not right": (
        "a newer Paddle saved the program: give interpolate() size= in place of scale_factor=, or "
        "save the model with Paddle 3.2"
    ),
    "out_of_range.403] key 'D' not found": (
        "a constant of the program is not a number (NaN), which Paddle saves and cannot load: "
        "compute it from an input, or leave it out"
    ),
    "More than one shadow output": (
        "the program returns an input unchanged or writes into it: return a copy (paddle.assign)"
    ),
}
"""What to do, by a part of the framework's message."""


def with_advice(message: str) -> str:
    """Return the message, followed by what to do, if ADVICE has that."""
    advice = next((text for known, text in ADVICE.items() if known in message), "")
    return f"{message}; {advice}" if advice else message
