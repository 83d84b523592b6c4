"""HEIC files of `corners()`, made with libheif and x265 once: this installation cannot make any."""

from pathlib import Path

FILES = Path(__file__).parent / "heic"
PLAIN = (FILES / "plain.heic").read_bytes()
TURNED = (FILES / "turned.heic").read_bytes()
"""Stored a quarter turn against the clock, with the box that turns it back."""
ALPHA = (FILES / "alpha.heic").read_bytes()
"""With a vertical ramp of alpha."""
P3 = (FILES / "p3.heic").read_bytes()
"""One colour, (180, 110, 70), with the profile of `profiles.rgb(profiles.P3)`."""
