"""Does a configuration take effect, how fast is it, how far off."""
