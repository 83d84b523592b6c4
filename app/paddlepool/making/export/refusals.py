"""What to do about a refusal of a framework, by its own words."""

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
"""Sentences by a part of the framework's own."""


def with_advice(message: str) -> str:
    """The message, and what to do if it is known."""
    advice = next((text for known, text in ADVICE.items() if known in message), "")
    return f"{message}; {advice}" if advice else message
