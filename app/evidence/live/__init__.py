"""Instance groups compared while the server serves: proof and shadowing, in its idle moments."""
