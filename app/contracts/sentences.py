"""Text of others (frameworks, file names) as one line that is safe to print."""


def printable(text: str, kept: str = "") -> str:
    """Escape unprintable characters, such as a terminal's control codes, as Python does."""
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode()
        for each in text
    )
