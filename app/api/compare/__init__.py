"""/compare: instance groups side by side, as a page and as the data that it draws."""
