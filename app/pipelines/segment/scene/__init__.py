"""Where the foreground stands, on what, and how it is put there: background, frame, shadow."""
